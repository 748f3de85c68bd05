"""What evaluations say over time: where the minimum was, whether they fall in order, whether a task metric gained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnose.curves import WINDOW, Curves, Track
from diagnose.model import Evidence
from diagnose.names import EVAL_LOSS, LEARNING_RATE, Direction, direction, error_share_gained, is_eval_loss
from diagnose.stats import Trend, median, noise_scale, trend

#: Either can rise at the other's cost, so neither alone says that a model improves.
_HALF_METRICS = frozenset({"eval/precision", "eval/recall"})
#: From this many evaluations on the present level is the median of five, before that of three.
_MANY = 10
#: A learning rate this many times what it was means that the schedule began again.
_RESTART = 2.0
#: Two-sided chance of a trend below which a task metric counts as improving.
_CHANCE = 0.05
#: Kendall's tau of evaluations that go down in order, and the least gain that counts as one at all.
_IN_ORDER = -0.6
_LEAST_GAIN = 0.002


@dataclass
class Minimum:
    """The lowest evaluation loss so far, and the evaluations since.

    Args:
        step: where it was.
        count: evaluations up to it.
        log: its logarithm.
        before: logarithm of the evaluation before it; None for the first.
        epoch: where it was, when the log tells.
        train: level of the training loss then, as a logarithm; None while it is not known.
        metrics: the other evaluation metrics then.
        rate: the learning rate then; None where it is not logged.
    """

    step: int
    count: int
    log: float
    before: float | None
    epoch: float | None
    train: float | None
    metrics: Mapping[str, float]
    rate: float | None = None
    n_since: int = 0
    steps: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)

    @staticmethod
    def at(track: Track, curves: Curves) -> Minimum:
        """The minimum at the last evaluation of `track`."""
        step = track.last_step
        metrics = {k: t.last for k, t in curves.tracks.items() if k.startswith("eval/") and t.last_step == step}
        before = track.logs[-2] if track.n > 1 else None
        return Minimum(step, track.n, track.logs[-1], before, curves.epoch, train_log(curves), metrics, _rate(curves))

    def add(self, track: Track, curves: Curves) -> None:
        """Take in the last evaluation of `track`, which is no new minimum."""
        self.steps.append(track.last_step)
        self.logs.append(track.logs[-1])
        self.n_since += 1
        if len(self.logs) > WINDOW:
            del self.steps[1], self.logs[1]  # the first is a neighbour of the minimum
        if self.train is None:
            self.train = train_log(curves)

    @property
    def base(self) -> float:
        """The level at the minimum: the middle one of it and its neighbours, so that one lucky low does not set it."""
        around = [self.log, *([] if self.before is None else [self.before]), *self.logs[:1]]
        return median(around) if len(around) == 3 else self.log  # noqa: PLR2004 - both neighbours are there

    def risen(self, track: Track) -> float:
        """How far the present level is above the base, in logarithms.

        Without a noise to measure against, every one of the last evaluations has to be up.
        """
        last = self.logs[-(3 if track.n < _MANY else 5) :]
        is_level = track.noise is not None and len(last) > 2  # noqa: PLR2004 - two have no median
        return (median(last) if is_level else min(last)) - self.base

    def is_restarted(self, curves: Curves) -> bool:
        """Whether the learning rate is well above what it was at the minimum: a restart of the schedule lifts every loss."""
        now = _rate(curves)
        return self.rate is not None and now is not None and now > _RESTART * self.rate

    def trend(self) -> Trend | None:
        """The trend from the minimum on; None for fewer than four evaluations with it."""
        return trend([self.step, *self.steps], [self.log, *self.logs])


def _rate(curves: Curves) -> float | None:
    rates = curves.get(LEARNING_RATE)
    return rates.last if rates is not None and math.isfinite(rates.last) else None


def judged(curves: Curves, points: int, evals: int) -> Track | None:
    """The loss that tells how a run as a whole went: the evaluation's where there are enough, else the training's.

    Args:
        curves: the run.
        points: fewest training points.
        evals: fewest evaluations.

    Returns:
        None where too little was logged, or where the loss goes below 0 and logarithms mean nothing.
    """
    track = curves.get(EVAL_LOSS)
    if track is None or track.n < evals:
        track = curves.train
        if track is None or track.n < points:
            return None
    return None if track.goes_negative else track


def train_log(curves: Curves) -> float | None:
    """The level of the training loss, as a logarithm; None where too little was logged or logarithms mean nothing."""
    track = curves.train
    if track is None or track.n < 2 or track.goes_negative:  # noqa: PLR2004 - one point is no level
        return None
    return median(track.recent_logs(3))


def improving_metric(low: Minimum, curves: Curves, gain: float, height: float, late: int) -> str | None:
    """A task metric that has gained since the minimum of the loss and still does, in words; None without one.

    It still gains when it was at its best only lately, or when its later half since the minimum has a trend.

    Args:
        low: the minimum of the loss.
        curves: the run so far.
        gain: share of the error that a metric has to gain, beyond its own noise; half of it counts beyond `height` noises.
        height: in standard deviations of one evaluation.
        late: among how many last evaluations its best has to be.
    """
    for name, before in low.metrics.items():
        way, values = direction(name), curves.tracks[name].recent(WINDOW)
        if is_eval_loss(name) or way is None or not math.isfinite(before) or not values or name in _HALF_METRICS:
            continue
        now, noise = median(values[-3:]), noise_scale(values)
        best = max(values) if way is Direction.HIGHER else min(values)
        if best not in values[-late:] and not _improves(values[-max(6, low.n_since // 2) :], way):
            continue
        gained, moved = error_share_gained(before, now, way), abs(now - before)
        is_large = gained >= gain and (noise is None or moved >= noise)
        is_clear = gained >= 0.5 * gain and noise is not None and moved >= height * noise
        if is_large or is_clear:
            return f"{name} ({before:.4g} then, {now:.4g} now)"
    return None


def _improves(values: list[float], way: Direction) -> bool:
    """Whether values have a trend to the better that chance would seldom give."""
    test = trend(range(len(values)), values)
    return test is not None and test.p < _CHANCE and way.better(test.tau, 0.0)


def any_metric_gained(first: Mapping[str, float], curves: Curves, gain: float) -> bool:
    """Whether any task metric has gained that share of its error since its first value."""
    for name, before in first.items():
        way = direction(name)
        if is_eval_loss(name) or way is None or not math.isfinite(before):
            continue
        if error_share_gained(before, median(curves[name].recent(3) or [before]), way) > gain:
            return True
    return False


def rise_of_all(track: Track) -> float:
    """The chance of a rise as clear as that of all evaluations together, from first to last; 1 where they do not rise."""
    test = trend(track.blocks.steps, track.blocks.values)
    return 1.0 if test is None or test.tau <= 0 else test.p


def falls_steadily(track: Track, gained: float) -> bool:
    """Whether the evaluations go down in order, by more than their noise: slow, but not flat."""
    if gained <= max(_LEAST_GAIN, track.noise or 0.0):
        return False
    test = trend(track.blocks.steps, track.blocks.values)
    return test is not None and test.tau <= _IN_ORDER


def stand_still(
    curves: Curves, first: Mapping[str, float], gain: float, away: float, metric_gain: float
) -> list[Evidence] | None:
    """That the evaluations have not moved since the first.

    Args:
        curves: the run so far.
        first: the first value of each evaluation metric.
        gain: the largest gain of a loss over its first value that is none, as a share.
        away: the largest distance from it, either way.
        metric_gain: the largest gain of a task metric that is none, as a share of its error.

    Returns:
        One comparison a loss that has at least two values, so none where too few were logged; None where any has moved.
    """
    found = []
    for track in curves.eval_losses:
        if track.n < 2 or track.goes_negative or track.best <= 0 or track.head[0] <= 0:  # noqa: PLR2004 - a first and a later
            continue
        gained = math.log(track.head[0] / track.best)
        moved = abs(median(track.recent_logs(3)) - math.log(track.head[0]))
        if gained > gain or moved > away or falls_steadily(track, gained):
            return None
        what = f"{track.name} gained since its first"
        found.append(Evidence(what, gained, "<=", gain, "share", track.last_step))
    return None if any_metric_gained(first, curves, metric_gain) else found
