"""What the README shows is what the commands print. UPDATE_SNAPSHOTS=1 writes the outputs anew: read the diff."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parent.parent
README = REPO / "README.md"
#: A console block holds one command and what it prints.
BLOCK = re.compile(r"^```console\n\$ diagnose (?P<arguments>[^\n]*)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)


def printed(arguments: str) -> str:
    plain = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    done = subprocess.run(
        [sys.executable, "-m", "diagnose", *shlex.split(arguments)],
        cwd=REPO,
        env={**plain, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines()) + "\n"


def test_shown_outputs_are_what_the_commands_print() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) == text.count("```console") > 0
    now = BLOCK.sub(lambda m: f"```console\n$ diagnose {m['arguments']}\n{printed(m['arguments'])}```", text)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        README.write_text(now, encoding="utf-8")
    assert README.read_text(encoding="utf-8") == now, "UPDATE_SNAPSHOTS=1 writes the outputs anew"
