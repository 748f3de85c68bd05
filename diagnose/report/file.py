"""Reports to files: whole or not at all, so that nobody ever reads half of one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from diagnose.errors import DiagnoseError


def writable(path: Path) -> Path:
    """The same path, when a file can stand there: to be asked before any work is done.

    Raises:
        DiagnoseError: it is a folder, or its folder is missing.
    """
    if path.is_dir():
        raise DiagnoseError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise DiagnoseError(f"cannot write {path}: there is no folder {path.parent}")
    return path


def save(path: Path, text: str) -> None:
    """Write a file in one go, replacing what was there.

    Args:
        path: a device or a named pipe is written to instead of replaced; a link is followed.
        text: is written as UTF-8.

    Raises:
        DiagnoseError: it cannot be written; what was there is left as it was.
    """
    target = path.resolve()
    is_special = target.exists() and not target.is_file()
    fresh = target if is_special else target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        fresh.write_bytes(text.encode("utf-8", "backslashreplace"))
        if not is_special:
            fresh.replace(target)
    except OSError as error:
        raise DiagnoseError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if not is_special:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
