"""How losses of several runs differ beyond their noise.

Noise is that of `Track.noise`, in logarithms: two values differ when their logarithms are further apart than two standard
deviations of that difference, and than one per cent, below which two seeds differ as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.curves import FLOOR, Track
from diagnose.stats import median

#: A difference counts from this share of the loss, …
LEAST = 0.01
#: … and from this many standard deviations of it; …
HEIGHT = 2.0
#: … where no noise is known, from this share: the least that readers of curves speak of.
LEAST_BLIND = 0.02
#: Standard deviation of a median of normal values in that of their mean.
_OF_MEDIAN = math.sqrt(math.pi / 2)
#: The level of a training loss is taken over the last of so many parts of its course, and over this many blocks at least.
_PARTS, _LEAST_BLOCKS = 8, 3
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Point:
    """A loss to compare; NaN is that of a run which was lost.

    Args:
        value: as measured.
        step: where.
        sd: standard deviation of its logarithm; None where too few points tell.
    """

    value: float
    step: int | None = None
    sd: float | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity in all runs.

    Args:
        kind: `best`, `end`, or `equal-steps`.
        metric: the loss.
        points: of each run; None where there is nothing to compare.
        lowest: index of the run with the lowest; None where none is finite.
        level: indices of the runs that are not above the lowest beyond noise, the lowest itself among them.
    """

    kind: str
    metric: str
    points: tuple[Point | None, ...]
    lowest: int | None
    level: tuple[int, ...]

    @property
    def is_within_noise(self) -> bool:
        """Whether nothing differs: every run that has a point is level with the lowest."""
        return len(self.level) == sum(point is not None for point in self.points)


def difference(kind: str, metric: str, points: Sequence[Point | None]) -> Difference:
    """Which of the points is the lowest, and which are as low within noise."""
    finite = [(p.value, i) for i, p in enumerate(points) if p is not None and math.isfinite(p.value)]
    if not finite:
        return Difference(kind, metric, tuple(points), None, ())
    lowest = min(finite)[1]
    base = points[lowest]
    assert base is not None  # it is finite
    level = [i for _, i in finite if (p := points[i]) is not None and not is_above(p, base)]
    return Difference(kind, metric, tuple(points), lowest, tuple(sorted(level)))


def is_above(high: Point, low: Point) -> bool:
    """Whether a finite loss is above another one beyond noise."""
    apart, noise = gap(high, low), gap_noise(high, low)
    if noise is None:
        return apart >= math.log1p(LEAST_BLIND)
    return apart >= math.log1p(LEAST) and apart >= HEIGHT * noise


def gap(high: Point, low: Point) -> float:
    """How far two finite losses are apart, in logarithms."""
    floor = max(abs(high.value), abs(low.value)) * FLOOR + _TINY
    return math.log(max(high.value, floor) / max(low.value, floor))


def gap_noise(a: Point, b: Point) -> float | None:
    """Standard deviation of `gap`; where one noise alone is known, it stands for both."""
    known = [p.sd for p in (a, b) if p.sd is not None]
    return math.hypot(known[0], known[-1]) if known else None


def best_of(track: Track | None) -> Point | None:
    """The lowest value; None where there is none, or none that a logarithm can be taken of."""
    if track is None or track.best_step is None or track.goes_negative:
        return None
    return Point(track.best, track.best_step, track.noise)


def last_of(track: Track | None) -> Point | None:
    """The last value, which may be NaN."""
    if track is None or not track.n or track.goes_negative:
        return None
    return Point(track.last, track.last_step, track.noise)


def level_of(track: Track | None) -> Point | None:
    """The level over the last part of the course: NaN where the metric is no number at its end, None where it says nothing."""
    if track is None or track.goes_negative or not (track.n or track.n_bad):
        return None
    if track.bad_in_a_row:
        return Point(math.nan, track.last_step)
    last = track.blocks.values[-max(_LEAST_BLOCKS, len(track.blocks.values) // _PARTS) :]
    n = len(last) * track.blocks.length
    noise = track.noise
    return Point(math.exp(median(last)), track.last_step, None if noise is None else noise * _OF_MEDIAN / math.sqrt(n))
