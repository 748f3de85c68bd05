"""The runs below a folder, as `diagnose FOLDER` finds them; what has not changed is not read again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from diagnose.model import Run
from diagnose.readers import Skipped, events
from diagnose.readers.discover import find_below
from diagnose.tensorboard.parts import Stamp, parts_of


@dataclass(frozen=True, slots=True)
class Batch:
    """Some of the runs of a source, in order, and what was not read among them."""

    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...] = ()


class FolderSource:
    """All logs below a folder.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, tuple[tuple[Stamp, ...], Batch]] = {}
        self._events = _GrowingEvents()

    @property
    def name(self) -> str:
        """Where the runs come from, for people."""
        return self.root.as_posix()

    def batches(self) -> Iterator[Batch]:
        """Every run, part by part; only parts in which a file has changed are read.

        Yields:
            The parts in the order of `diagnose`. The runs of all of them may share an id: see `with_unique_ids`.
        """
        known: dict[Path, tuple[tuple[Stamp, ...], Batch]] = {}
        for part in parts_of(self.root):
            before = self._known.get(part.top)
            if before is None or before[0] != part.stamps:
                found = find_below(part.top, self.root, is_flat=part.is_flat, read_events=self._events.read)
                skipped = tuple(Skipped(where.as_posix(), str(error)) for where, error in found.errors)
                before = (part.stamps, Batch(tuple(found.runs), tuple(dict.fromkeys(skipped))))
                self._known[part.top] = before
            known[part.top] = before
            yield before[1]
        self._known = known
        self._events.forget_others()


class _GrowingEvents:
    """Reads event files, and of one that has grown only what is new."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[tuple[int, int], int, events.EventFile]] = {}

    def read(self, path: Path) -> events.EventFile:
        """What the file holds now; the lists in it are ours and grow with the next reading.

        Raises:
            ReadError: as `events.read` does.
        """
        try:
            status = path.stat()
        except OSError:
            return events.read(path)  # which tells why
        identity = (status.st_dev, status.st_ino)
        known = self._files.get(path)
        if known is None or known[0] != identity or status.st_size < known[1]:
            file = events.read(path)
        else:
            file = known[2]
            if status.st_size > file.end:
                events.go_on(file)
        self._files[path] = (identity, status.st_size, file)
        return replace(file, notes=list(file.notes))

    def forget_others(self) -> None:
        """Forget files that are no more."""
        self._files = {path: known for path, known in self._files.items() if path.exists()}
