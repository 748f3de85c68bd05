"""Pure statistics on short arrays: robust levels, noise and trends.

Windows here hold at most a few hundred numbers. Lists in, floats out: for such lengths plain Python is faster than numpy, and
importing `scipy.stats` would cost every command about a second, so the tests hold these functions against scipy's instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: Turns a median absolute deviation into the standard deviation of normal data: 1 / Phi^-1(3/4).
MAD_TO_SD = 1.482602218505602


def median(values: Sequence[float]) -> float:
    """Middle of a sample.

    Args:
        values: (n,) finite, any unit, in any order; n >= 1.

    Returns:
        The median in the unit of `values`.

    Raises:
        ValueError: no values.

    >>> median([3.0, 1.0, 2.0, 10.0])
    2.5
    """
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        raise ValueError("median of no values")
    half = n // 2
    return ordered[half] if n % 2 else 0.5 * (ordered[half - 1] + ordered[half])


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile by linear interpolation between order statistics (type 7 of Hyndman & Fan 1996).

    Args:
        values: (n,) finite; n >= 1.
        q: between 0 and 1.

    Raises:
        ValueError: no values.

    >>> quantile([1.0, 2.0, 3.0, 4.0, 5.0], 0.25)
    2.0
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("quantile of no values")
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def robust_scale(values: Sequence[float]) -> float:
    """Spread of a sample that a few outliers cannot move.

    1.4826 times the median absolute deviation from the median: the standard deviation for normal data.

    Args:
        values: (n,) finite, any unit; n >= 2.

    Returns:
        Spread in the unit of `values`; 0.0 when more than half the values are equal.

    Raises:
        ValueError: fewer than two values.

    Source: Hampel 1974, JASA 69, "The influence curve and its role in robust estimation".

    >>> round(robust_scale([1.0, 2.0, 3.0, 100.0]), 4)
    1.4826
    """
    if len(values) < 2:  # noqa: PLR2004 - a spread needs two values
        raise ValueError("robust_scale needs two values")
    middle = median(values)
    return MAD_TO_SD * median([abs(v - middle) for v in values])


def noise_scale(values: Sequence[float]) -> float | None:
    """Noise of an ordered sample around whatever smooth course it follows.

    Each inner point is compared with the mean of its two neighbours, which removes any locally straight trend; the robust
    spread of these pseudo-residuals, divided by sqrt(3/2), is the noise of one point.

    Args:
        values: (n,) finite, in order of time, any unit.

    Returns:
        Standard deviation of one point in the unit of `values`; None for fewer than five values.

    Source: Gasser, Sroka & Jennen-Steinmetz 1986, Biometrika 73, with a robust spread in place of the mean square.

    >>> round(noise_scale([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 6)
    0.0
    >>> noise_scale([1.0, 2.0]) is None
    True
    """
    if len(values) < 5:  # noqa: PLR2004 - three residuals at least
        return None
    residuals = [abs(b - 0.5 * (a + c)) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return MAD_TO_SD * median(residuals) / math.sqrt(1.5)


class Trend(NamedTuple):
    """A monotone trend: its slope per unit of x, its direction from -1 to 1, and the chance of one so clear without any."""

    slope: float
    tau: float
    p: float


def trend(x: Sequence[float], y: Sequence[float]) -> Trend | None:
    """Whether y rises or falls with x, without assuming a shape or a noise law.

    The slope is the median of the slopes between all pairs (Theil-Sen); the test is Mann-Kendall's, two-sided, with its
    normal approximation, continuity and tie correction.

    Args:
        x: (n,) strictly increasing, any unit.
        y: (n,) finite, any unit. n up to a few hundred: cost grows with its square.

    Returns:
        Trend(slope, tau, p); None for fewer than four points.

    Source: Theil 1950; Sen 1968, JASA 63; Mann 1945, Econometrica 13; Kendall 1975.

    >>> t = trend([1, 2, 3, 4, 5], [5.0, 4.0, 3.0, 2.0, 1.0])
    >>> t.slope, t.tau, round(t.p, 3)
    (-1.0, -1.0, 0.027)
    """
    n = len(x)
    if n < 4:  # noqa: PLR2004 - with three points even a perfect order is chance
        return None
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    i, j = np.triu_indices(n, 1)
    dy = ys[j] - ys[i]
    score = float(np.sign(dy).sum())
    slope = float(np.median(dy / (xs[j] - xs[i])))
    _, ties = np.unique(ys, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance <= 0:
        return Trend(0.0, 0.0, 1.0)
    z = (abs(score) - 1) / math.sqrt(variance) if score else 0.0
    return Trend(slope, 2 * score / (n * (n - 1)), math.erfc(max(z, 0.0) / math.sqrt(2)))
