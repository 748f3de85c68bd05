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

    Between two steps whose epoch or time is known, steps are placed in proportion; before the first and after the last, with
    it. Time is in seconds since the first log.
    """
    if axis is Axis.STEP:
        return lambda steps: steps.astype(np.float64)
    known = run.series.get(EPOCH) if axis is Axis.EPOCH else run.clock
    if known is None:
        return None
    good = np.isfinite(known.value)
    steps, values = known.step[good].astype(np.float64), np.maximum.accumulate(known.value[good])
    if values.size < 2 or values[-1] <= values[0]:  # noqa: PLR2004 - an axis needs two places
        return None
    if axis is Axis.TIME:
        values = values - values[0]
    return lambda wanted: np.interp(wanted.astype(np.float64), steps, values)
