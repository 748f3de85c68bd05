"""CD202 loss-divergence: the loss climbs away from its best level and stays there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import LEVEL, Curves, Track
from diagnose.model import Evidence, Finding, Row, Severity, Status
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median, quantile

_FALL = [2.0, 1.6, 1.3, 1.1, 0.95, 0.85, 0.8, 0.76]


@dataclass(frozen=True)
class LossDivergence(Rule):
    """The loss climbed away from its best level and stays up.

    What it sees:
        The share of the progress (in logarithms) that the training loss has given back and not regained: three quarters of
        the recent points stand far above the best level, by a clear factor and by several noise widths. The evaluation
        loss counts in the same way, but only while the training loss rises with it.

    Why it matters:
        A run that climbs rarely comes back by itself. What it learned is being lost while every step is paid for.

    What to do:
        Go back to the best checkpoint and divide the learning rate by 3; by 9 when the loss has passed its own start.

    When it is wrong:
        A change of data, a resume with another data order, or a restart of the schedule can raise the loss for good without
        any harm. At a usual rate, an 8-bit optimizer or a faulty attention kernel has more than once been the cause.

    References:
        The measure, share of progress given back, follows the practice of reading log-scale curves; its limits were set on the
        labelled curves behind `fixtures/public`.
    """

    code: ClassVar[str] = "CD202"
    name: ClassVar[str] = "loss-divergence"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    also: ClassVar[tuple[str, ...]] = (EVAL_LOSS,)
    vital: ClassVar[bool] = True

    climb: float = threshold(1.4, unit="ratio", low=1.0, high=100.0, source="labelled curves: a clear climb on a log axis")
    share: float = threshold(
        0.3, unit="share of the progress", low=0.01, high=10.0, source="labelled curves; healthy ones stay below a quarter"
    )
    height: float = threshold(3.0, unit="sd of one point", low=0.0, high=100.0, source="three sigma, by the lower quartile")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("climbs past its start", {TRAIN_LOSS: [*_FALL, 1.2, 2.2, 3.5, 4.0, 4.2, 4.4, 4.5]}),
        Example("gives back most of it", {TRAIN_LOSS: [*_FALL, 0.9, 1.1, 1.3, 1.4, 1.5, 1.5, 1.6, 1.6]}),
        Example(
            "climbs from the start, evaluation with it",
            {TRAIN_LOSS: [1.0, 1.3, 1.7, 2.2, 2.8, 3.3], EVAL_LOSS: [1.1, 1.4, 1.9, 2.4, 2.9, 3.4]},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("a spike that recovers", {TRAIN_LOSS: [*_FALL, 3.0, 1.0, 0.8, 0.74, 0.72, 0.7]}),
        Example("falls", {TRAIN_LOSS: [*_FALL, 0.73, 0.71, 0.7, 0.69]}),
        Example("noise of batch size 1", {TRAIN_LOSS: [2.0, 1.2, 2.4, 0.9, 1.8, 2.6, 1.1, 0.8, 2.2, 1.0, 2.7, 0.9]}),
        Example(
            "the evaluation alone rises: memorization",
            {TRAIN_LOSS: [2.0, 1.2, 0.8, 0.5, 0.3, 0.2, 0.1], EVAL_LOSS: [1.8, 1.5, 1.6, 1.9, 2.2, 2.5, 2.8]},
        ),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _LossDivergenceWatch(self)


class _Low:
    """The best level of one metric so far, and how the training loss stood there."""

    def __init__(self) -> None:
        self.best = math.inf
        self.step = 0
        self.train: float | None = None


class _LossDivergenceWatch(Watch):
    rule: LossDivergence

    def __init__(self, rule: LossDivergence) -> None:
        super().__init__(rule)
        self.lows: dict[str, _Low] = {TRAIN_LOSS: _Low(), EVAL_LOSS: _Low()}
        self.open: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        for name, low in self.lows.items():
            value = row.values.get(name)
            if value is not None and math.isfinite(value):
                return self._see_metric(curves[name], low, row.step, curves)
        return NOTHING

    def _see_metric(self, track: Track, low: _Low, step: int, curves: Curves) -> Sequence[Finding]:
        if track.goes_negative:
            return NOTHING
        level = median(track.recent_logs(LEVEL))
        # Evaluations are few and average much: the first counts as a level of its own, for a run can climb from the start.
        is_level = track.n > 2 or (track.n == 1 and track.name == EVAL_LOSS)  # noqa: PLR2004 - a median needs three
        if is_level and level < low.best:
            low.best, low.step, low.train = level, step, _train_level(curves)
        if track.n < 4:  # noqa: PLR2004 - one point beyond the level
            return NOTHING
        evidence = self._evidence(track, low, step)
        if evidence is not None and track.name == EVAL_LOSS and not self._train_rises(low, curves):
            evidence = None
        if evidence is None:
            return self._maybe_resolve(track, low, step)
        if self.open is not None and self.open.metric != track.name:
            return NOTHING  # the other metric tells the story already
        past_start = track.logs[-1] > track.start_log and level > track.start_log
        said = f"{track.name} climbed from {math.exp(low.best):.4g} (step {low.step}) to {math.exp(level):.4g} and stays up"
        if past_start:
            said += ", above where it started"
        why = f"{track.name} gave back {_percent(evidence[1].value)} of its progress after step {low.step}"
        self.open = self.finding(
            track.name,
            self.open.first_step if self.open is not None else step,
            step,
            said,
            *evidence,
            prescription=prescribe.lower_rate(curves, why, times=2 if past_start else 1),
        )
        return (self.open,)

    def _evidence(self, track: Track, low: _Low, step: int) -> tuple[Evidence, ...] | None:
        rule = self.rule
        held = quantile(track.recent_logs(_window(track.n)), 0.25)
        climb = held - low.best
        progress = max(track.start_log - low.best, 1e-3)
        noise = track.noise
        ratio, share = math.exp(climb), climb / progress
        if ratio < rule.climb or share < rule.share or (noise is not None and climb < rule.height * noise):
            return None
        found = [
            Evidence(f"{track.name} over its best level, held by three quarters", ratio, ">=", rule.climb, "ratio", step),
            Evidence("progress given back", share, ">=", rule.share, "share", step),
        ]
        if noise is not None and noise > 0:
            found.append(Evidence(f"{track.name} above its best level", climb / noise, ">=", rule.height, "sd", step))
        return tuple(found)

    def _train_rises(self, low: _Low, curves: Curves) -> bool:
        """Whether the training loss stands above where it was at the best evaluation, or was first seen."""
        track, now = curves.train, _train_level(curves)
        if track is None or now is None:
            return False
        then = low.train if low.train is not None else math.log(max(track.head[0], track.floor))
        return now - then > 0.5 * math.log(self.rule.climb)

    def _maybe_resolve(self, track: Track, low: _Low, step: int) -> Sequence[Finding]:
        past = self.open
        if past is None or past.metric != track.name:
            return NOTHING
        held = quantile(track.recent_logs(_window(track.n)), 0.75)
        if held - low.best > 0.5 * math.log(self.rule.climb):
            return NOTHING
        self.open = None
        message = f"{track.name} had climbed away from its best level but is back near it at step {step}"
        return (
            self.finding(
                track.name,
                past.first_step,
                step,
                message,
                *past.evidence,
                severity=Severity.WARNING,
                status=Status.RESOLVED,
            ),
        )

    def skip(self, curves: Curves) -> str | None:
        track = curves.train
        if track is not None and track.goes_negative:
            return "the loss goes below 0, so it is no likelihood"
        return None


def _window(n: int) -> int:
    """How many recent points have to be up: few in a short run, a twelfth of a long one, within a Track's memory."""
    few = 3 if n < 10 else LEVEL  # noqa: PLR2004 - below ten points five would be half the run
    return min(32, max(few, n // 12))


def _train_level(curves: Curves) -> float | None:
    track = curves.train
    return None if track is None or not track.n else median(track.recent_logs(3))


def _percent(share: float) -> str:
    return f"{100 * min(share, 1.0):.0f} %" if share < 1 else "all"
