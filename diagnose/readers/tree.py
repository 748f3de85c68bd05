"""A tree of folders: which files in it may be logs, and of which format. Links are followed, but never in a circle."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.errors import NotALog, ReadError
from diagnose.readers.files import reason
from diagnose.readers.sniff import format_of, is_candidate, is_log_name

#: What could not be read, and why.
Error = tuple[Path, ReadError]

#: Folders that never hold logs of one's own.
PASSED_OVER = frozenset({"node_modules", "__pycache__", "site-packages"})
_CHECKPOINT = re.compile(r"^(tmp-)?checkpoint[-_]\w+$")


def is_checkpoint(name: str) -> bool:
    """Whether a folder is called as a trainer calls its checkpoints: what it holds belongs to the folder above.

    >>> is_checkpoint("checkpoint-500"), is_checkpoint("lora-r16")
    (True, False)
    """
    return _CHECKPOINT.match(name) is not None


@dataclass
class Files:
    """The logs of one folder, by what they are."""

    events: list[Path] = field(default_factory=list)
    states: list[Path] = field(default_factory=list)
    others: list[tuple[Path, str]] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


def walk(root: Path, errors: list[Error]) -> Iterator[tuple[Path, Files]]:
    """Every folder from `root` down, once each, in the order of names.

    Args:
        root: a folder.
        errors: what cannot be read is added here.

    Yields:
        A folder and the logs in it.
    """
    waiting = [root]
    seen: set[tuple[int, int]] = set()
    while waiting:
        folder = waiting.pop()
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue  # a link back up
            seen.add((status.st_dev, status.st_ino))
            names = sorted(os.listdir(folder))  # noqa: PTH208 - names are wanted, iterdir builds a Path for each
        except OSError as error:
            errors.append((folder, ReadError(reason(error))))
            continue
        files = _sort(folder, names, errors)
        yield folder, files
        waiting.extend(reversed(files.folders))


def _sort(folder: Path, names: Sequence[str], errors: list[Error]) -> Files:
    """The entries of a folder by what they are."""
    files = Files()
    for name in names:
        path = folder / name
        try:
            mode = path.stat().st_mode
        except OSError as error:
            if is_log_name(name):
                errors.append((path, ReadError(reason(error))))
            continue
        if stat.S_ISDIR(mode):
            if not name.startswith(".") and name not in PASSED_OVER:
                files.folders.append(path)
            continue
        if not stat.S_ISREG(mode) or name.startswith(".") or not is_candidate(name):
            continue
        try:
            kind = format_of(path)
        except ReadError as error:
            errors.append((path, error))
            continue
        if kind == "events":
            files.events.append(path)
        elif name == "trainer_state.json":
            files.states.append(path)
        elif kind is not None:
            files.others.append((path, kind))
        elif is_log_name(name):
            errors.append((path, NotALog("named like a log, but no log format that is known")))
    return files
