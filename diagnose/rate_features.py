"""What one run's course says about its learning rate, as a few numbers without a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from diagnose.curves import Curves
from diagnose.names import EVAL_LOSS, GRAD_NORM
from diagnose.rate_course import RateCourse
from diagnose.stats import median, noise_scale

#: Features of every run, and those that need a gradient norm.
LOSS_FEATURES = ("peak", "rise", "fallen", "first", "early", "slope", "bend", "gain", "annealing", "noise", "eval_noise")
GRADIENT_FEATURES = ("gradient_mid", "gradient_late", "gradient_peak", "gradient_noise")
#: The rate counts as not yet decayed above this share of its peak.
_HIGH = 0.6
#: A feature beyond this says no more than one at it.
_MOST = 4.0
#: Progress below this share of the loss is nothing to divide by.
_LEAST_PROGRESS = 0.02
_THREE = math.log(3.0)
_TWO = math.log(2.0)


def rate_features(course: RateCourse, curves: Curves) -> dict[str, float] | None:
    """The features of a run so far.

    All losses are logarithms. `slope` is the fall over the last doubling of the summed rate before the decay of the schedule,
    `bend` its ratio to the fall over the doubling before, `gain` what three times the rate would gain by it as a share of
    all progress, `annealing` what the decay gained beyond it, `peak` and `rise` how far the loss rose early above its first
    value and above its lowest, `first` and `early` how much of the fall the first evaluation already shows; the gradient
    features compare the norm with that of the first logs.

    Args:
        course: loss against summed rate.
        curves: the run so far.

    Returns:
        Names as in LOSS_FEATURES and, where gradient norms were logged, GRADIENT_FEATURES; None for too short a course.
    """
    train = curves.train
    logs = course.train.values
    if train is None or not train.head or len(logs) < 8:  # noqa: PLR2004 - a quarter needs two blocks
        return None
    start = math.log(max(train.head[0], train.floor))
    smooth = [median(logs[max(0, i - 2) : i + 1]) for i in range(len(logs))]
    quarter = max(3, len(logs) // 4)
    lows = np.minimum.accumulate(smooth)
    evals = curves.get(EVAL_LOSS)
    with_evals = len(course.evals.values) >= 4  # noqa: PLR2004 - two doublings need four evaluations
    end = course.evals.values[-1] if with_evals else median(logs[-max(3, len(logs) // 8) :])
    fallen = start - end
    progress = max(fallen, _LEAST_PROGRESS)
    found = {
        "peak": max(smooth[:quarter]) - start,
        "rise": float((np.asarray(smooth) - lows)[: max(4, len(logs) // 2)].max()),
        "fallen": fallen,
        "noise": train.noise or 0.0,
        "eval_noise": (evals.noise or 0.0) / progress if with_evals and evals is not None else 0.0,
    }
    first = course.evals.values[0] if with_evals else smooth[min(len(smooth) - 1, len(logs) // 10 + 2)]
    found["first"] = first - start
    found["early"] = (start - first) / progress
    found |= _slopes(course, start, end, progress, with_evals=with_evals)
    grads = curves.get(GRAD_NORM)
    if grads is not None and grads.n >= 8:  # noqa: PLR2004 - as above
        found |= _gradients([math.log(max(v, grads.floor)) for v in grads.head[:3]], grads.blocks.values, grads.noise or 0.0)
    return {name: max(-_MOST, min(_MOST, value)) for name, value in found.items()}


def _slopes(course: RateCourse, start: float, end: float, progress: float, *, with_evals: bool) -> dict[str, float]:
    """The course before the decay, continued: slope, bend, gain at three times the rate, and what annealing gained."""
    sums = np.log(np.asarray(course.train.steps))
    rates = np.asarray(course.rates.values)
    high = int(np.flatnonzero(rates >= _HIGH * rates.max())[-1])
    if with_evals:
        x = np.concatenate([sums[:1], np.log(np.asarray(course.evals.steps))])
        y = np.concatenate([[start], np.asarray(course.evals.values)])
    else:
        x, y = sums, _smoothed(course.train.values)
    at = float(sums[high])
    here, half, quarter = (float(np.interp(at - k * _TWO, x, y)) for k in range(3))
    last, before = half - here, quarter - half
    bend = last / before if abs(before) > 1e-3 * progress else 0.0
    expected = here - last / _TWO * (float(sums[-1]) - at)
    decays = high < len(rates) - 3
    more = max(last, 0.0) / _TWO * _THREE
    return {
        "slope": last,
        "bend": bend,
        "gain": more / (progress + more),
        "annealing": (expected - end) / progress if decays else 0.0,
    }


def _smoothed(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Running means of five, shorter at the ends."""
    y = np.asarray(values, dtype=np.float64)
    sums = np.cumsum(np.concatenate([[0.0], y]))
    low = np.maximum(np.arange(y.size) - 2, 0)
    high = np.minimum(np.arange(y.size) + 3, y.size)
    return np.asarray((sums[high] - sums[low]) / (high - low))


def _gradients(first: Sequence[float], logs: Sequence[float], noise: float) -> dict[str, float]:
    """The gradient norm in the middle, late and at its early peak, against the first logs."""
    base, n = median(first), len(logs)
    return {
        "gradient_mid": median(logs[n // 3 : max(n // 3 + 1, 2 * n // 3)]) - base,
        "gradient_late": median(logs[-max(3, n // 4) :]) - base,
        "gradient_peak": max(logs[: max(3, n // 4)]) - base,
        "gradient_noise": noise if noise else (noise_scale(list(logs)) or 0.0),
    }
