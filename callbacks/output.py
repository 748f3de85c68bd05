"""What the live doctor shows and leaves behind. Nothing here may cost a training for want of a terminal or of disk space."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from tqdm.auto import tqdm

from diagnose.model import Finding, Report, Run, Setting, Status
from diagnose.report.json import document, dumps
from diagnose.report.text import render_report
from diagnose.report.words import plain

#: The doctor's own file, beside the Trainer's `trainer_state.json`.
FILE_NAME = "curve_doctor.json"


def say(text: str) -> None:
    """Write to standard output without tearing a progress bar; a closed or full output is not the training's trouble."""
    if sys.stdout is None:
        return
    try:
        tqdm.write(text)
    except (OSError, ValueError):  # ValueError: the file is closed, or cannot encode the text
        return


def finding_line(finding: Finding) -> str:
    """One finding on one line: `CD101 nan-loss (error): train/loss is nan since step 7`."""
    word = "resolved" if finding.status is Status.RESOLVED else finding.severity.value
    return plain(f"{finding.code} {finding.name} ({word}): {finding.message}")


def show_report(report: Report, run: Run) -> None:
    """Write the Rich report to standard output.

    It is drawn into memory first: rich ends the whole process when it meets a broken pipe.
    """
    real = Console()
    memory = io.TextIOWrapper(io.BytesIO(), encoding=getattr(sys.stdout, "encoding", None) or "utf-8", newline="\n")
    console = Console(file=memory, width=real.width, force_terminal=real.is_terminal, force_jupyter=False)
    render_report(report, run, console=console)
    memory.seek(0)
    say(memory.read().rstrip("\n"))


def write_report(report: Report, settings: Mapping[str, Setting], folder: Path) -> None:
    """Write `curve_doctor.json` into a folder, whole or not at all.

    Raises:
        OSError: the folder cannot be written; an earlier file is then as it was.
    """
    content = dumps(document([report]) | {"settings": dict(settings)})
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".curve_doctor-", dir=folder)
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(content)
        part.chmod(0o644)  # mkstemp keeps it from other users, who may read all that the Trainer writes
        part.replace(folder / FILE_NAME)
    finally:
        part.unlink(missing_ok=True)
