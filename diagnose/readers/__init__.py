"""Log files to Runs: one file per format, found by content.

`read` takes one path, `read_tree` any number and says what it skipped; both yield the same runs whatever the format.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from diagnose.errors import NotALog, ReadError
from diagnose.model import Run
from diagnose.readers.discover import Reading, Skipped, find, with_unique_ids

__all__ = ["Reading", "Skipped", "read", "read_tree"]


def read(path: str | os.PathLike[str]) -> list[Run]:
    """Every run at a path.

    Args:
        path: a log file, or a folder that holds logs at any depth.

    Returns:
        At least one run, with unique ids.

    Raises:
        ReadError: nothing can be read there.
        NotALog: it can be read, but holds no training curve.
    """
    found = find(Path(path))
    if found.runs:
        return with_unique_ids(found.runs)
    where, error = found.errors[0]
    more = f" (and {len(found.errors) - 1} more that cannot be read)" if len(found.errors) > 1 else ""
    kind = NotALog if all(isinstance(e, NotALog) for _, e in found.errors) else ReadError
    raise kind(f"{where.as_posix()}: {error}{more}")


def read_tree(paths: Iterable[str | os.PathLike[str]]) -> Reading:
    """Every run below each of the paths, and what was skipped and why. Never raises for what it finds there.

    Args:
        paths: files and folders; one that does not exist is reported as skipped.
    """
    runs: list[Run] = []
    skipped: list[Skipped] = []
    for path in paths:
        found = find(Path(path))
        known = {run.source for run in runs}
        runs += [run for run in found.runs if run.source not in known]
        skipped += [Skipped(where.as_posix(), str(error)) for where, error in found.errors]
    return Reading(tuple(with_unique_ids(runs)), tuple(dict.fromkeys(skipped)))
