"""How far a loss has climbed from its best level, and how much of its progress that is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diagnose.curves import LEVEL, Track
from diagnose.stats import median, noise_scale, quantile

#: Points of the recent course that have to be up: at least a level, a twelfth of the run, at most half of a Track's memory.
_SHARE, _MOST = 12, 32
#: A climb below this is none whatever the noise, as a logarithm.
_LEAST_HEIGHT = 0.05
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
    def progress(self) -> float:
        """From the start down to the best level, in logarithms."""
        return self.height / self.share

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
        # As many points as a climb has to hold: the lowest of many short levels would be low by luck alone.
        level = median(track.recent_logs(self._window(track)))
        if level >= self.best:
            return False
        self.best, self.step = level, track.last_step
        return True

    def climb(self, track: Track) -> Climb | None:
        """How far three quarters of the recent points are above the best level; None for fewer than four points."""
        # From a level of 0, as far as the log's digits go, every rise is without measure.
        is_zero = self.best <= math.log(track.floor) + 1e-9
        if track.n < 4 or is_zero or not math.isfinite(self.best):  # noqa: PLR2004 - one point beyond a level of three
            return None
        height = self._recent(track, 0.25) - self.best
        progress = max(track.start_log - self.best, 1e-3)
        noise = _level_noise(track) if height > _LEAST_HEIGHT else math.inf  # most points are no climb, and need no noise
        return Climb(height, height / progress, height / noise if noise else math.inf)

    def still_up(self, track: Track) -> float:
        """Height above the best level that a quarter of the recent points still has."""
        return self._recent(track, 0.75) - self.best

    def held(self, track: Track) -> float:
        """The level that three quarters of the recent points hold or exceed."""
        return self._recent(track, 0.25)

    def _window(self, track: Track) -> int:
        few = _EVALS if self.is_eval or track.n < 2 * LEVEL else LEVEL
        return min(_MOST, max(few, track.n // _SHARE))

    def _recent(self, track: Track, q: float) -> float:
        return quantile(track.recent_logs(self._window(track)), q)


def _level_noise(track: Track) -> float:
    """Noise of one point as far as it moves a level: that of means of four, times two, where neighbours hang together."""
    logs = list(track.logs)
    means = [sum(logs[i : i + 4]) / 4 for i in range(len(logs) % 4, len(logs), 4)]
    return max(track.noise or 0.0, 2.0 * (noise_scale(means) or 0.0))
