"""The same run told by several logs: an output folder often holds its history as JSON, JSON lines and event files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np

from diagnose.model import Note, Run, Series
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.readers.sniff import is_candidate, is_log_name

#: Fewer common points than this could agree by chance.
_POINTS = 3
#: Event files keep 24 bits, and some loggers four digits after the point.
_RTOL, _ATOL = 1e-4, 6e-5


def told_once(runs: Sequence[Run]) -> list[Run]:
    """The runs without those that another of them, in a log of another format, tells in full.

    Two files of one format are two runs, however alike, unless one of them stands for the folder, such as MMEngine's
    `scalars.json` beside a dated copy of it.

    Args:
        runs: of one output folder, the better told first among equals.
    """
    if len({run.source for run in runs}) <= 1 or not any(_stands_for_folder(run) for run in runs):
        return list(runs)
    kept: list[Run] = []
    for run in sorted(runs, key=lambda r: -_size(r)):
        home = next((k for k, other in enumerate(kept) if _may_be_same(other, run) and _tells(other, run)), None)
        if home is None:
            kept.append(run)
        else:
            note = Note("told-twice", f"{run.source} tells the same run and was left out")
            # Event files hold the Trainer's arguments, which its state file lacks.
            settings = {**run.settings, **kept[home].settings}
            kept[home] = replace(kept[home], settings=settings, notes=(*kept[home].notes, note))
    order = {(run.source, run.id): i for i, run in enumerate(runs)}
    return sorted(kept, key=lambda r: order[r.source, r.id])


def _may_be_same(a: Run, b: Run) -> bool:
    """Whether the logs of two runs differ in format, or one of them stands for the folder in which the other lies."""
    paths = PurePath(a.source), PurePath(b.source)
    if a.source == b.source or not (_stands_for_folder(a) or _stands_for_folder(b)):
        return False
    return paths[0].suffix != paths[1].suffix or _stands_for_folder(a) != _stands_for_folder(b)


def _stands_for_folder(run: Run) -> bool:
    """Whether the run's log is the folder's own: event files, or a file with the name that a trainer gives to its log."""
    name = PurePath(run.source).name
    return is_log_name(name) or not is_candidate(name)


def _size(run: Run) -> int:
    return sum(len(series) for series in run.series.values())


def _tells(long: Run, short: Run) -> bool:
    """Whether every loss of the shorter run is in the longer one."""
    names = [name for name in (TRAIN_LOSS, EVAL_LOSS) if name in short.series]
    points = sum(len(short.series[name]) for name in names)
    return points >= _POINTS and all(name in long.series and _holds(long.series[name], short.series[name]) for name in names)


def _holds(long: Series, short: Series) -> bool:
    at = np.searchsorted(long.step, short.step)
    if len(long) < len(short) or bool((at >= len(long)).any()) or not np.array_equal(long.step[at], short.step):
        return False
    return bool(np.allclose(long.value[at], short.value, rtol=_RTOL, atol=_ATOL, equal_nan=True))
