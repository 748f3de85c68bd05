"""The scale of a drawn curve: linear, or logarithmic where a linear one would hide most of the course."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diagnose.model import FloatArray

#: A scale is logarithmic where half of every metric's points would lie in this share of the height at the bottom, …
_CROWDED = 0.1
#: … and the highest value is this many times the lowest.
_LOG_RATIO = 3.0
#: Powers of ten that a logarithmic scale shows; zeros and what lies below stand on the floor.
_MOST_DECADES = 6.0
#: Decades from which only powers of ten are labelled.
_MANY_DECADES = 2.0
#: Rows between two labels.
_ROWS_A_TICK = 3
#: Share of the range left free above and below.
_AIR = 0.02
#: A range smaller than this is one value, drawn in the middle.
_TINY = 1e-300
_HUGE = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to a share of the height.

    Args:
        low: value at the bottom.
        high: value at the top.
        is_log: whether equal ratios take equal height.
        is_empty: whether there was no finite value, so that nothing is labelled.
    """

    low: float
    high: float
    is_log: bool
    is_empty: bool = False

    def share(self, value: FloatArray) -> FloatArray:
        """0 at the bottom, 1 at the top. `value` is (n,), finite."""
        if self.is_log:
            value = np.maximum(value, self.low)
            return np.asarray(np.log(value / self.low) / math.log(self.high / self.low))
        # halves: the difference of two huge values of opposite sign is beyond a float
        return np.asarray((value / 2 - self.low / 2) / (self.high / 2 - self.low / 2))

    def ticks(self, height: int) -> dict[int, str]:
        """Labels by row, counted from the top."""
        if self.is_empty:
            return {}
        n = max(2, height // _ROWS_A_TICK)
        values = self._log_ticks(n) if self.is_log else spread_ticks(self.low, self.high, n)
        rows = np.rint((1.0 - self.share(np.asarray(values))) * (height - 1)).astype(int).tolist() if values else []
        return {row: f"{value:.4g}" for row, value in zip(rows, values, strict=True) if 0 <= row < height}

    def _log_ticks(self, n: int) -> list[float]:
        decades = math.log10(self.high / self.low)
        digits = (1,) if decades > _MANY_DECADES else (1, 2, 5)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [d * 10.0**p for p in powers for d in digits if self.low <= d * 10.0**p <= self.high]
        if len(values) <= 1:
            return spread_ticks(self.low, self.high, n)
        return values[:: max(1, math.ceil(len(values) / (n + 1)))]


def scale_for(shown: Sequence[FloatArray]) -> Scale:
    """The scale for all drawn metrics.

    Args:
        shown: the values of each, (n,); NaN and inf are ignored.
    """
    finite = [good for values in shown if (good := values[np.isfinite(values)]).size]
    if not finite:
        return Scale(0.0, 1.0, is_log=False, is_empty=True)
    low, high = min(float(v.min()) for v in finite), max(float(v.max()) for v in finite)
    above = [up for values in finite if (up := values[values > 0]).size]
    # one metric that fills the height is reason enough for a linear scale: on a logarithmic one its course would be flat
    crowded = all(float(np.median(v)) / 2 - low / 2 < _CROWDED * (high / 2 - low / 2) for v in finite)
    if crowded and low >= 0 and above:
        floor = max(min(float(v.min()) for v in above), high * 10.0**-_MOST_DECADES)
        if high / floor > _LOG_RATIO:
            return Scale(floor, high, is_log=True)
    air = _AIR * (high / 2 - low / 2)
    if air < _TINY:
        air = max(abs(low) / 2, 0.5)
    return Scale(max(low - air, -_HUGE), min(high + air, _HUGE), is_log=False)


def spread_ticks(low: float, high: float, n: int) -> list[float]:
    """About n round numbers within the range, a multiple of 1, 2 or 5 apart.

    >>> spread_ticks(0.0, 1200.0, 4)
    [0.0, 500.0, 1000.0]
    """
    rough = (high / n) - (low / n)
    if not _TINY < rough < _HUGE / 10:
        return []
    power = 10.0 ** math.floor(math.log10(rough))
    gap = next((d * power for d in (1, 2, 5) if d * power >= rough), 10 * power)
    first, last = math.ceil(low / gap), math.floor(high / gap)
    return [k * gap for k in range(first, last + 1)]
