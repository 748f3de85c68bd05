"""A tree of logs cut into parts that can be read one without the other, so that a log that grows is read alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.readers.sniff import is_candidate
from diagnose.readers.tensorboard import SIDES
from diagnose.readers.tree import PASSED_OVER, is_checkpoint

#: A file as it stands: name, size, time of its last change in ns.
Stamp = tuple[str, int, int]
_STATE = "trainer_state.json"


@dataclass(frozen=True, slots=True)
class Part:
    """Folders whose runs have nothing to do with those of any other part.

    Args:
        top: the folder to begin at.
        is_flat: whether the folders below it are parts of their own.
        stamps: every file in it; a part whose stamps are the same need not be read again.
    """

    top: Path
    is_flat: bool
    stamps: tuple[Stamp, ...]


@dataclass
class _Folder:
    path: Path
    files: list[Stamp] = field(default_factory=list)
    below: list[_Folder] = field(default_factory=list)
    is_tangled: bool = False

    @property
    def binds(self) -> bool:
        """Whether the runs here may take in what lies in a folder below."""
        whole = any(name == _STATE or "tfevents" in name.lower() for name, _, _ in self.files)
        return whole or any(f.path.name.lower() in SIDES or is_checkpoint(f.path.name) for f in self.below)

    def all_files(self) -> Iterator[Stamp]:
        yield from self.files
        for folder in self.below:
            for name, size, changed in folder.all_files():
                yield f"{folder.path.name}/{name}", size, changed


def parts_of(root: Path) -> list[Part]:
    """The parts of a tree, in the order in which its folders are walked.

    A folder that cannot be listed counts as empty: reading it tells the error. Where links lead to one folder twice, or back
    up, the tree is one part.

    Args:
        root: a folder.
    """
    tree = _listed(root, set())
    if tree.is_tangled:
        return [Part(root, False, tuple(tree.all_files()))]
    return list(_cut(tree))


def _cut(folder: _Folder) -> Iterator[Part]:
    if folder.binds:
        yield Part(folder.path, False, tuple(folder.all_files()))
        return
    if any(is_candidate(name) for name, _, _ in folder.files):
        yield Part(folder.path, True, tuple(folder.files))
    for below in folder.below:
        yield from _cut(below)


def _listed(path: Path, seen: set[tuple[int, int]]) -> _Folder:
    """A folder and all below it. A folder that two paths lead to is listed once, and what is above it is tangled."""
    folder = _Folder(path)
    try:
        status = path.stat()
        if (status.st_dev, status.st_ino) in seen:
            folder.is_tangled = True
            return folder
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return folder
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            if not entry.is_dir():
                status = entry.stat()
                folder.files.append((entry.name, status.st_size, status.st_mtime_ns))
            elif entry.name not in PASSED_OVER:
                folder.below.append(below := _listed(path / entry.name, seen))
                folder.is_tangled |= below.is_tangled
        except OSError:
            folder.files.append((entry.name, -1, 0))
    return folder
