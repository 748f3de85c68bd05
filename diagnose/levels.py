"""Levels on a linear scale: for rewards, which may be negative, so that logarithms mean nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from diagnose.curves import Track

#: Points whose mean is a level: rewards of one batch are so noisy that a median of five says little.
LEVEL_POINTS = 16
#: Share of all points that has to be down before a level counts as lost, held within a Track's memory.
_SHARE, _MOST = 12, 64


def mean(values: Sequence[float]) -> float:
    """Mean of (n,) finite values; NaN of none. Sums that overflow give inf or NaN, never an error."""
    return sum(values) / len(values) if values else math.nan


def spread(values: Sequence[float]) -> float:
    """Noise of one point around whatever slow course the points follow, from successive differences.

    Not robust on purpose: a reward of 0 or 1 has no outliers, and half of its differences may be 0.

    Args:
        values: (n,) finite, in order of time.

    Returns:
        Standard deviation of one point in the unit of `values`; 0.0 for fewer than two.

    Source: von Neumann, Kent, Bellinson & Hart 1941, Annals of Mathematical Statistics 12.

    >>> round(spread([0.0, 2.0, 0.0, 2.0]), 3)
    1.414
    """
    steps = [b - a for a, b in pairwise(values)]
    return math.sqrt(mean([d * d for d in steps]) / 2) if steps else 0.0


@dataclass(frozen=True, slots=True)
class Fall:
    """A fall from the best level.

    Args:
        now: mean of the recent points.
        drop: below the best level, in the metric's own unit.
        share: of what was gained from the start to the best level, or of the noise of one point where that is more.
        sigmas: drop in standard errors of the two levels; inf without noise.
    """

    now: float
    drop: float
    share: float
    sigmas: float


class Heights:
    """The start and the best level of one metric that should rise."""

    def __init__(self) -> None:
        self.start = self.best = -math.inf
        self.best_step = 0
        self.noise = 0.0

    def add(self, track: Track) -> bool:
        """Take in the last point of `track`; returns whether it made a new best level."""
        if track.n < LEVEL_POINTS:
            return False
        level = mean(track.recent(LEVEL_POINTS))
        if track.n == LEVEL_POINTS:
            self.start = level
        if not level > self.best:
            return False
        self.best, self.best_step, self.noise = level, track.last_step, spread(list(track.values))
        return True

    def fall(self, track: Track) -> Fall | None:
        """How far the recent points are below the best level; None while there is none or numbers overflow."""
        if track.n < 2 * LEVEL_POINTS:
            return None
        k = min(_MOST, max(LEVEL_POINTS, track.n // _SHARE))
        now, noise = mean(track.recent(k)), max(self.noise, spread(list(track.values)))
        drop, gain = self.best - now, max(self.best - self.start, noise)
        if not (math.isfinite(drop) and math.isfinite(gain)):
            return None
        error = noise * math.sqrt(1 / k + 1 / LEVEL_POINTS)
        return Fall(now, drop, drop / gain if gain else math.copysign(math.inf, drop), drop / error if error else math.inf)

    def risen(self, track: Track) -> float:
        """Recent level above the start, in standard errors; 0.0 while too few points tell."""
        if track.n < 2 * LEVEL_POINTS:
            return 0.0
        noise = max(self.noise, spread(list(track.values)))
        gain, error = mean(track.recent(LEVEL_POINTS)) - self.start, noise * math.sqrt(2 / LEVEL_POINTS)
        return gain / error if error else (math.inf if gain > 0 else 0.0)
