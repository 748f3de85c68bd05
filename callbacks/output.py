"""What the live doctor shows and leaves behind. Nothing here may cost a training for want of a terminal or of disk space."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from tqdm.auto import tqdm

from diagnose.model import Report, Run
from diagnose.readers.own_file import FILE_NAME
from diagnose.report.json import document, dumps
from diagnose.report.text import render_report

#: How a recorded page stands in a notebook: its own colours, the notebook's own background.
_PRE = '<pre style="white-space:pre;overflow-x:auto;line-height:1.25;font-family:monospace">{code}</pre>'


def say(text: str) -> None:
    """Write to standard output without tearing a progress bar; a closed or full output is not the training's trouble."""
    if sys.stdout is None:
        return
    try:
        tqdm.write(text)
    except (OSError, ValueError):  # ValueError: the file is closed, or cannot encode the text
        return


def show_report(report: Report, run: Run) -> None:
    """Write the Rich report to standard output.

    It is drawn into memory first: rich ends the whole process when it meets a broken pipe. In a notebook it is shown as HTML,
    with its colours.
    """
    if _in_notebook():
        _show_html(report, run)
        return
    real = Console()
    memory = io.TextIOWrapper(io.BytesIO(), encoding=getattr(sys.stdout, "encoding", None) or "utf-8", newline="\n")
    console = Console(file=memory, width=real.width, force_terminal=real.is_terminal, force_jupyter=False)
    render_report(report, run, console=console)
    memory.seek(0)
    say(memory.read().rstrip("\n"))


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs us: only then is IPython loaded, with a shell of its kind."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = ask() if callable(ask) else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _show_html(report: Report, run: Run) -> None:
    console = Console(record=True, file=io.StringIO(), width=100, force_jupyter=False)
    render_report(report, run, console=console)
    page = console.export_html(inline_styles=True, code_format=_PRE)
    display = sys.modules["IPython"].display
    display.display(display.HTML(page))


def write_report(
    report: Report, folder: Path, *, observed: Sequence[Mapping[str, Any]] = (), samples: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Write `curve_doctor.json` into a folder, whole or not at all.

    Args:
        report: of the run.
        folder: to write into; made where it is missing.
        observed: what was seen step by step and stands in no log.
        samples: what the model said, with steps and prompts.

    Raises:
        OSError: the folder cannot be written; an earlier file is then as it was.
    """
    more = {name: list(rows) for name, rows in (("observed", observed), ("samples", samples)) if rows}
    content = dumps(document([report]) | {"settings": report.settings} | more)
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
