"""Spikes: points that stand far above the recent band. Shared by the rules on single and on repeated spikes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diagnose.curves import Track
from diagnose.stats import median, noise_scale

#: Points before a spike that make its band: enough for a spread, few enough to follow a falling loss.
BAND = 24
#: The least number of points that make a band.
LEAST_BAND = 3
#: Bands shorter than this have no spread worth the name: they ask for twice the jump.
SHORT_BAND = 5
#: A spike that ends below this share of the metric's first value is of no consequence.
LEAST_SHARE = 0.03
#: A band below this share of the first value is digits' noise: printed logs round there.
LEAST_BASE = 0.01
#: A jump must also exceed this multiple of the largest excursion in its band: heavy-tailed noise has large ones.
TAIL = 2.0


@dataclass(frozen=True, slots=True)
class Spike:
    """One point far above its band.

    Args:
        step: where.
        value: how high.
        base: level of the band before it.
        ratio: value / base.
        height: of its logarithm above the band, in standard deviations of one point.
    """

    step: int
    value: float
    base: float
    ratio: float
    height: float


class SpikeDetector:
    """Finds the first point of each spike in a stream and tells when the metric is back in its band.

    Args:
        height: the least height in standard deviations of one point (of its logarithm), for a short run; each e-fold of
            its length adds one, since the largest of many heavy-tailed values grows without any trouble.
        ratio: the least ratio to the band's level.
    """

    def __init__(self, height: float, ratio: float) -> None:
        self.height = height
        self.ratio = ratio
        self.open: Spike | None = None
        self.outside = 0
        self._resumed: int | None = None
        self._band: list[float] = []
        self._excursions: list[float] = []

    def add(self, track: Track, resumed: int | None = None) -> Spike | None:
        """Take in the last finite point of `track`.

        Args:
            track: the metric.
            resumed: the step from which the training was last resumed: a jump there is no spike, and a new band begins.

        Returns:
            The spike that begins at this point, if one does.
        """
        log, value, step = track.logs[-1], track.values[-1], track.steps[-1]
        if resumed != self._resumed:
            self._resumed = resumed
            self.give_up()
        if self.open is not None:
            if log <= 0.5 * (math.log(self.open.base) + math.log(max(self.open.value, track.floor))):
                self.open = None
            else:
                self.outside += 1
                return None
        spike = self._judge(log, value, step, track)
        if spike is not None:
            self.open, self.outside = spike, 1
            return spike
        self._band.append(log)
        del self._band[:-BAND]
        return None

    def give_up(self) -> None:
        """Take the present level as the new band: what stays up is no spike."""
        self.open = None
        self._band.clear()
        self._excursions.clear()

    def _judge(self, log: float, value: float, step: int, track: Track) -> Spike | None:
        band = self._band
        if len(band) < LEAST_BAND:
            return None
        # On a falling curve the last three are nearer than the last eight; after one low point the other way round.
        base = min(median(band[-8:]), median(band[-3:]))
        if base < math.log(LEAST_BASE * abs(track.head[0]) + track.floor):
            return None
        jump = log - base
        tail = max(self._excursions, default=0.0)
        self._excursions.append(jump)
        del self._excursions[:-BAND]
        ratio = self.ratio if len(band) >= SHORT_BAND else self.ratio**2
        if jump < max(math.log(ratio), TAIL * tail) or value < LEAST_SHARE * abs(track.head[0]):
            return None
        noise = noise_scale(band) or 0.0
        if jump < noise * (self.height + math.log(max(track.n, BAND) / BAND)):
            return None
        if min(band) <= math.log(track.floor) + 1e-9:
            return None  # zeros among the losses: no band at all
        self._excursions.pop()
        return Spike(step, value, math.exp(base), math.exp(jump), jump / noise if noise > 0 else math.inf)
