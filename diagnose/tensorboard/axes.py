"""Where a step lies on the x axis: at the step itself, at its epoch, or at the time since the run began."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import numpy as np

from diagnose.model import FloatArray, IntArray, Run
from diagnose.names import EPOCH


class Axis(StrEnum):
    """What the x axis counts."""

    STEP = "step"
    EPOCH = "epoch"
    TIME = "time"


#: Steps to places: (n,) to (n,), never decreasing.
Place = Callable[[IntArray], FloatArray]


def axes_of(run: Run) -> list[Axis]:
    """The axes that a run's log knows."""
    return [axis for axis in Axis if place_on(run, axis) is not None]


def place_on(run: Run, axis: Axis) -> Place | None:
    """How to place steps on an axis; None when the log does not tell.

    Steps are placed in proportion between two whose epoch or time is known and differs: a log that rounds its epochs tells
    several steps the same one. Time is in seconds since the first log.
    """
    if axis is Axis.STEP:
        return lambda steps: steps.astype(np.float64)
    known = run.series.get(EPOCH) if axis is Axis.EPOCH else run.clock
    if known is None:
        return None
    good = np.isfinite(known.value)
    steps, values = known.step[good].astype(np.float64), known.value[good]
    if not values.size:
        return None
    highest = np.maximum.accumulate(values)
    rises = np.append(True, np.diff(highest) > 0)
    steps, values = steps[rises], highest[rises]
    if values.size < 2:  # noqa: PLR2004 - an axis needs two places
        return None
    if axis is Axis.TIME:
        values = values - values[0]
    pace = (values[-1] - values[0]) / (steps[-1] - steps[0])

    def place(wanted: IntArray) -> FloatArray:
        x = wanted.astype(np.float64)
        beyond = np.maximum(x - steps[-1], 0.0) - np.maximum(steps[0] - x, 0.0)
        return np.asarray(np.interp(x, steps, values) + beyond * pace)

    return place
