"""One log, how many runs: steps that start again, rows that are told twice, counters that restart with each epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from diagnose.model import Note, Row
from diagnose.readers.files import counted

#: How many rows back a second process of the same run may lag behind the first in a shared log.
_LAG = 16
#: Two processes of one run agree in the loss to about this; each averages its own shard.
_AGREES = 5e-3
#: Evaluations are counted in epochs when the training went more than this many times further.
FAR = 3


def segments(rows: Sequence[Row]) -> tuple[list[list[Row]], list[Note]]:
    """The rows of each run in a log, and what was merged on the way.

    A run ends where a metric's step goes back to that metric's first step or before: the training began anew. A step that
    goes back to a later one is a resume and stays, for `build_run` to settle. A row that repeats a recent one was written
    by a second process of the same run and is left out.

    Args:
        rows: in the order of the log.
    """
    if _goes_on(rows):
        return [list(rows)], []
    parts: list[list[Row]] = [[]]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    seen: dict[int, dict[str, float]] = {}
    repeated = retold = 0
    for i, row in enumerate(rows):
        begins = any(name in last and row.step < last[name] and row.step <= first[name] for name in row.values)
        if row.values.keys() <= seen.get(row.step, {}).keys():
            furthest = max(last[name] for name in row.values)
            if _agrees(row, seen) and not (begins and _departs(rows, i, seen, furthest)):
                repeated += 1
                continue
            overtaken = rows[i + 1].step > furthest if i + 1 < len(rows) else retold > 0
            if row.step == furthest or overtaken:
                retold += 1  # a second process lags behind, and averages its own data
                continue
        if begins:
            parts.append([])
            first, last, seen = {}, {}, {}
        elif any(row.step < last.get(name, row.step) for name in row.values):  # a resume: what came later is no more
            seen = {step: values for step, values in seen.items() if step < row.step}
        parts[-1].append(row)
        for name in row.values:
            first.setdefault(name, row.step)
            last[name] = row.step
        if row.step in seen:
            seen[row.step].update(row.values)
        else:
            seen[row.step] = dict(row.values)
            if len(seen) > _LAG:
                del seen[next(iter(seen))]
    notes = []
    if repeated:
        notes.append(Note("repeated-rows", f"{counted(repeated, 'row')} merged: told before in this log"))
    if retold:
        notes.append(Note("repeated-steps", f"{counted(retold, 'row')} dropped: the step was told before, with other values"))
    return parts, notes


def _goes_on(rows: Sequence[Row]) -> bool:
    """Whether nothing starts again and nothing is told twice, which most logs allow to see at a glance."""
    paired = False
    for before, row in pairwise(rows):
        if row.step > before.step:
            paired = False
        elif row.step < before.step or paired or not row.values.keys().isdisjoint(before.values):
            return False
        else:
            paired = True  # a third row of the step would have to be compared with both
    return True


def _agrees(row: Row, seen: dict[int, dict[str, float]]) -> bool:
    """Whether a row says of its step what was said before."""
    return all(_agree(value, seen[row.step][name]) for name, value in row.values.items())


def _departs(rows: Sequence[Row], i: int, seen: dict[int, dict[str, float]], furthest: int) -> bool:
    """Whether rows that repeat earlier ones, from the i-th on, go their own way before they catch up.

    A training that was started again with the same seed begins with the same loss; a second process never departs.
    """
    for row in rows[i:]:
        if row.step > furthest or not row.values.keys() <= seen.get(row.step, {}).keys():
            return False
        if not _agrees(row, seen):
            return True
    return False


def _agree(a: float, b: float) -> bool:
    return a == b or (a != a and b != b) or math.isclose(a, b, rel_tol=_AGREES)


def continue_epochs(rows: Sequence[Row]) -> tuple[list[Row], list[Note]]:
    """Put the epochs one after the other in a log whose step counter starts again with each of them.

    A resumed run's epoch goes back together with its step; here the step goes back each time that the epoch grows.

    Args:
        rows: in the order of the log.

    Returns:
        The rows, unchanged when the steps need no mending, and a note otherwise.
    """
    back = [(a, b) for a, b in pairwise(rows) if b.step < a.step]
    epochs = [int(row.epoch) for row in rows if row.epoch is not None and math.isfinite(row.epoch)]
    if not back or len(epochs) < len(rows) or not all(_grows(a.epoch, b.epoch) for a, b in back):
        return list(rows), []
    length = max(row.step for row in rows)
    if min(row.step for row in rows) == 0:
        gaps = [b.step - a.step for a, b in pairwise(rows) if b.step > a.step]
        length += min(gaps, default=1)
    start = min(epochs)
    moved = [Row(row.step + (e - start) * length, row.values, row.epoch) for row, e in zip(rows, epochs, strict=True)]
    text = f"the step counter starts again with each epoch: epochs of {length} steps were put one after the other"
    return moved, [Note("steps-per-epoch", text)]


def place_evaluations(rows: Sequence[Row]) -> tuple[list[Row], list[Note]]:
    """Put evaluations that were logged by epoch at the training step before them in the log.

    Where training losses have steps and evaluations have epochs in the same column, ten evaluations would all seem to lie
    in the first ten steps.

    Args:
        rows: in the order of the log.

    Returns:
        The rows, unchanged where evaluations have steps, and a note otherwise.
    """
    last = 0
    moved: list[tuple[int, int]] = []
    for i, row in enumerate(rows):
        if all(name.startswith("eval/") for name in row.values):
            moved.append((i, last))
        else:
            last = row.step
    steps = [rows[i].step for i, _ in moved]
    by_epoch = (
        len(steps) > 1 and all(b - a == 1 for a, b in pairwise(steps)) and all(a < b for (_, a), (_, b) in pairwise(moved))
    )
    if not by_epoch or moved[-1][1] <= FAR * (steps[-1] + 1):
        return list(rows), []
    placed = list(rows)
    for i, step in moved:
        placed[i] = Row(step, rows[i].values, rows[i].epoch)
    return placed, [Note("steps-by-epoch", "evaluations were logged by epoch: put at the training steps before them")]


def _grows(a: float | None, b: float | None) -> bool:
    """Whether a whole epoch number goes up."""
    return a is not None and b is not None and a == int(a) and b == int(b) and b > a
