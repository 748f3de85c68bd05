"""Fewer points that draw the same picture: every extreme and every gap of a curve is kept."""

from __future__ import annotations

import numpy as np

from diagnose.model import FloatArray, IntArray

#: Weight beyond which smoothing says nothing any more.
MOST_SMOOTHING = 0.999


def decimate(x: FloatArray, y: FloatArray, columns: int) -> IntArray:
    """Which points to draw.

    Of the points that fall into one column: the first, the last, the lowest, the highest, and the first and the last that is
    not finite, so that neither a spike nor a NaN is lost however many points there are.

    Args:
        x: (n,) never decreasing, finite.
        y: (n,) NaN and inf allowed.
        columns: of the drawing, such as its width in pixels.

    Returns:
        (m,) indices, increasing, m <= 6 * columns; all of them where there are few.

    Source: the M4 aggregation (Jugel et al. 2014, VLDB 7), with gaps kept besides.

    >>> decimate(np.arange(8.0), np.array([0, 0, 9, 0, 0, np.nan, 0, 0]), 1)
    array([0, 2, 5, 7])
    """
    n = x.size
    if n <= columns:
        return np.arange(n)
    width = x[-1] - x[0]
    column = np.zeros(n) if width <= 0 else np.minimum(np.floor((x - x[0]) / width * columns), columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    counts = np.diff(np.append(starts, n))
    finite = np.isfinite(y)
    lowest = np.repeat(np.minimum.reduceat(np.where(finite, y, np.inf), starts), counts)
    highest = np.repeat(np.maximum.reduceat(np.where(finite, y, -np.inf), starts), counts)
    kept = np.zeros(n, dtype=bool)
    kept[starts] = kept[starts + counts - 1] = True
    for extreme in (finite & (y == lowest), finite & (y == highest), ~finite):
        at = np.flatnonzero(extreme)
        kept[at[np.diff(column[at], prepend=-1) > 0]] = True
    last_bad = np.flatnonzero(~finite)
    kept[last_bad[np.diff(column[last_bad], append=columns) > 0]] = True
    return np.flatnonzero(kept)


def stretches(y: FloatArray) -> list[tuple[int, int]]:
    """First and last index of every stretch of values that are not finite.

    >>> stretches(np.array([1.0, np.nan, np.inf, 2.0, np.nan]))
    [(1, 2), (4, 4)]
    """
    bad = np.flatnonzero(~np.isfinite(y))
    if not bad.size:
        return []
    breaks = np.flatnonzero(np.diff(bad) > 1)
    firsts = bad[np.append(0, breaks + 1)]
    lasts = bad[np.append(breaks, bad.size - 1)]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def smoothed(y: FloatArray, weight: float) -> FloatArray:
    """Exponential moving average without the pull of its start, as TensorBoard's own charts draw it.

    Args:
        y: (n,) values that are not finite stay as they are and do not count.
        weight: of what was before; 0 changes nothing.

    >>> smoothed(np.array([1.0, np.nan, 3.0]), 0.5).round(3).tolist()
    [1.0, nan, 2.333]
    """
    weight = min(max(weight, 0.0), MOST_SMOOTHING)
    if not weight:
        return y
    last, power, out = 0.0, 1.0, y.copy()
    for i in np.flatnonzero(np.isfinite(y)).tolist():
        last = last * weight + (1.0 - weight) * float(y[i])
        power *= weight
        out[i] = last / (1.0 - power)
    return out
