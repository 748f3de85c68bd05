"""The consoles that reports are drawn on: the terminal or pipe behind stdout, and text for a file."""

from __future__ import annotations

import io
import os
import sys

from rich.console import Console

#: Width of text that goes to a file or a pipe, unless COLUMNS says otherwise, and the least that is still readable.
WIDTH, LEAST_WIDTH = 80, 40


class _Stdout(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command: rich would end the process with exit code 1, which means findings."""
        raise BrokenPipeError


def stdout_console() -> Console:
    """A console for stdout: rich honours NO_COLOR and FORCE_COLOR, but takes a pipe's width from the terminal behind it."""
    if sys.stdout.isatty():
        return _Stdout(file=sys.stdout)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() else WIDTH
    return _Stdout(file=sys.stdout, width=max(width, LEAST_WIDTH))


def file_console(page: io.StringIO) -> Console:
    """A console for what is saved to a file."""
    return Console(file=page, width=WIDTH, color_system=None, force_terminal=False)
