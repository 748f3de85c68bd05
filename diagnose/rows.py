"""Rows to a Run: the one place where duplicate steps, steps that go back and bad values are settled.

Readers and the live callback both build their Run here, so that a log read later equals the run seen live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from diagnose.model import FloatArray, IntArray, Note, Row, Run, Series, Setting
from diagnose.names import EPOCH, LEARNING_RATE, TRAIN_LOSS, canonical, is_fallback

#: Metrics that the Trainer averages over the steps since the last log; all others belong to one step.
_AVERAGED = frozenset({TRAIN_LOSS})


def number(value: Any) -> float | None:
    """A logged value as a float; None when it is not a number.

    Strings such as `"1.2"`, `"nan"` or `"Infinity"` count as numbers, since some loggers quote them. Booleans do not.
    Objects with an `item()` (numpy and torch scalars) are unwrapped.

    >>> number("1e-3"), number("NaN"), number(True), number("No log"), number(None)
    (0.001, nan, None, None, None)
    """
    if isinstance(value, float):
        return value
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if isinstance(value, str):
        try:
            return float(value.strip().replace("\u2212", "-"))
        except ValueError:
            return None
    item = getattr(value, "item", None)
    if callable(item):
        try:
            return number(item())
        except (TypeError, ValueError, RuntimeError):
            return None
    return None


def row_from_log(log: Mapping[str, Any], step: int, epoch: float | None = None) -> Row | None:
    """One row of a Trainer's log as a Row; None when it holds no metric.

    The closing summary (`train_loss` and `train_runtime`, without `loss`) is an average of the run, not a point.

    Args:
        log: the keys as the Trainer wrote them.
        step: optimizer step of the row.
        epoch: used when the log has no `epoch` of its own.
    """
    if "train_loss" in log and "loss" not in log and "train_runtime" in log:
        return None
    values: dict[str, float] = {}
    second: set[str] = set()
    for key, raw in log.items():
        name = canonical(str(key))
        value = number(raw)
        if name is None or value is None:
            continue
        if name == EPOCH:
            epoch = value
        elif is_fallback(str(key)):
            if name not in values:
                values[name] = value
                second.add(name)
        elif name not in values or name in second:
            values[name] = value
            second.discard(name)
    return Row(step, values, epoch) if values else None


def build_run(
    rows: Iterable[Row],
    *,
    id: str,
    source: str,
    settings: Mapping[str, Setting] | None = None,
    notes: Sequence[Note] = (),
) -> Run:
    """Collect rows into a Run; the first value logged at a step of a metric counts.

    A metric whose step goes back was resumed from an earlier checkpoint: what the first attempt logged beyond that step
    is dropped, as the resumed training replaced it, and a `steps-go-back` note says so. A repeated step is left out.

    Args:
        rows: in the order in which they were logged.
        id: see `Run`.
        source: see `Run`.
        settings: see `Run`.
        notes: what the reader has to say already.
    """
    columns: dict[str, tuple[list[int], list[float]]] = {}
    said: list[Note] = []
    high = None
    for row in rows:
        step = row.step
        if high is not None and step < high and _rewinds(row, columns):
            dropped = _cut(columns, step)
            if dropped:
                text = f"steps go back from {high} to {step}: resumed; {dropped} points of the first attempt dropped"
                said.append(Note("steps-go-back", text, step))
            high = step
        high = step if high is None or step > high else high
        for name, value in row.values.items():
            _add(columns, name, step, value)
        if row.epoch is not None:
            _add(columns, EPOCH, step, row.epoch)
    series = {name: _series(name, *points) for name, points in columns.items() if points[0]}
    return Run(id, source, series, dict(settings or {}), (*notes, *said))


def _add(columns: dict[str, tuple[list[int], list[float]]], name: str, step: int, value: float) -> None:
    """Add a point to a metric, unless the step has one already."""
    column = columns.get(name)
    if column is None:
        columns[name] = ([step], [value])
    elif not column[0] or column[0][-1] < step:
        column[0].append(step)
        column[1].append(value)


def run_of_columns(
    columns: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    *,
    id: str,
    source: str,
    settings: Mapping[str, Setting] | None = None,
    notes: Sequence[Note] = (),
) -> Run:
    """The Run that `build_run` would make of the same points, without a detour over rows.

    Args:
        columns: canonical name to steps that never decrease and their values; the first value at a step counts.
        id: see `Run`.
        source: see `Run`.
        settings: see `Run`.
        notes: what the reader has to say already.
    """
    series = {}
    for name, (steps, values) in columns.items():
        at = np.asarray(steps, dtype=np.int64)
        first = np.diff(at, prepend=at[0] - 1) > 0 if at.size else np.ones(0, dtype=bool)
        series[name] = _series(name, at[first], np.asarray(values, dtype=np.float64)[first])
    return Run(id, source, series, dict(settings or {}), tuple(notes))


def _rewinds(row: Row, columns: Mapping[str, tuple[list[int], list[float]]]) -> bool:
    """Whether the row takes a metric back, rather than only coming late with another metric's point."""
    known = (columns[name][0] for name in row.values if name in columns)
    return any(steps and steps[-1] > row.step for steps in known)  # none are left of a metric that was cut off whole


def _cut(columns: Mapping[str, tuple[list[int], list[float]]], step: int) -> int:
    """Drop every point at or after `step`; returns how many were dropped beside the epoch's."""
    dropped = 0
    for name, (steps, values) in columns.items():
        while steps and steps[-1] >= step:
            steps.pop()
            values.pop()
            dropped += name != EPOCH
    return dropped


def _series(name: str, steps: Sequence[int] | IntArray, values: Sequence[float] | FloatArray) -> Series:
    at = np.asarray(steps, dtype=np.int64)
    span = np.diff(at, prepend=min(0, int(at[0]) - 1) if at.size else 0) if name in _AVERAGED else np.ones_like(at)
    return Series(name, at, np.asarray(values, dtype=np.float64), np.maximum(span, 1))


def peak_learning_rate(run: Run) -> float | None:
    """The highest learning rate that the run logged; None when it logged none above 0."""
    series = run.series.get(LEARNING_RATE)
    if series is None or not len(series) or not bool(np.isfinite(series.value).any()):
        return None
    peak = float(np.nanmax(np.where(np.isfinite(series.value), series.value, np.nan)))
    return peak if peak > 0 else None
