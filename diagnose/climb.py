"""How far a loss has climbed from its best level, and how much of its progress that is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diagnose.curves import LEVEL, Track
from diagnose.stats import median, quantile

#: Points of the recent course that have to be up: at least a level, a twelfth of the run, at most half of a Track's memory.
_SHARE, _MOST = 12, 32
#: Evaluations that have to be up: they average over a whole set each.
_EVALS = 3


@dataclass(frozen=True, slots=True)
class Climb:
    """A climb from the best level, in logarithms.

    Args:
        height: of the level that three quarters of the recent points hold, above the best level.
        share: of all progress from the start to the best level; large where there was none.
        sigmas: height in standard deviations of one point; inf while those are 0 or not known.
    """

    height: float
    share: float
    sigmas: float

    @property
    def ratio(self) -> float:
        """The held level over the best one."""
        return math.exp(self.height)


class Course:
    """The lowest and the highest level of one loss so far.

    Args:
        is_eval: whether the loss is of an evaluation: few points, each an average over a whole set, so that the first one is
            a level of its own.
    """

    def __init__(self, *, is_eval: bool) -> None:
        self.is_eval = is_eval
        self.best = math.inf
        self.step = 0
        self.peak = -math.inf
        self.n_at_peak = 0

    def add(self, track: Track) -> bool:
        """Take in the last point of `track`; returns whether it made a new best level."""
        if track.n < 3 and not (self.is_eval and track.n == 1):  # noqa: PLR2004 - a median needs three
            return False
        high = median(track.recent_logs(3))
        if high > self.peak:
            self.peak, self.n_at_peak = high, track.n
        level = median(track.recent_logs(LEVEL))
        if level >= self.best:
            return False
        self.best, self.step = level, track.last_step
        return True

    def climb(self, track: Track) -> Climb | None:
        """How far three quarters of the recent points are above the best level; None for fewer than four points."""
        if track.n < 4 or not math.isfinite(self.best):  # noqa: PLR2004 - one point beyond a level of three
            return None
        height = self._recent(track, 0.25) - self.best
        progress = max(track.start_log - self.best, 1e-3)
        noise = track.noise
        return Climb(height, height / progress, height / noise if noise else math.inf)

    def still_up(self, track: Track) -> float:
        """Height above the best level that a quarter of the recent points still has."""
        return self._recent(track, 0.75) - self.best

    def held(self, track: Track) -> float:
        """The level that three quarters of the recent points hold or exceed."""
        return self._recent(track, 0.25)

    def _recent(self, track: Track, q: float) -> float:
        few = _EVALS if self.is_eval or track.n < 2 * LEVEL else LEVEL
        return quantile(track.recent_logs(min(_MOST, max(few, track.n // _SHARE))), q)
