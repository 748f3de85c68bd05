"""CD202 loss-divergence: the loss climbs away from its best level and stays there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.climb import Climb, Course
from diagnose.curves import LEVEL, Curves, Track
from diagnose.evaluations import train_log
from diagnose.model import Evidence, Finding, Row, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median, noise_scale

_WRECK = [3.4, 3.35, 3.36, 3.33, 3.35, 3.32, 3.34, 3.33]
_FALL = [2.0, 1.6, 1.3, 1.1, 0.95, 0.85, 0.8, 0.76]


@dataclass(frozen=True)
class LossDivergence(Rule):
    """The loss climbed away from its best level and stays up.

    What it sees:
        The share of the progress (in logarithms) that the training loss has given back and not regained: three quarters of
        the recent points stand far above the best level, by a clear factor and by several noise widths. The evaluation
        loss counts in the same way, but only while the training loss rises with it. A loss that jumps above its start, as
        a warm-up does that passes the edge, and never comes back below it has diverged as well.

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
    meant_false_alarms: ClassVar[str] = "1e-10 a point: four of five points beyond three sd of normal noise"

    climb: float = threshold(1.4, unit="ratio", low=1.0, high=100.0, source="labelled curves: a clear climb on a log axis")
    share: float = threshold(
        0.3, unit="share of the progress", low=0.01, high=10.0, source="labelled curves; healthy ones stay below a quarter"
    )
    height: float = threshold(3.0, unit="sd of one point", low=0.0, high=100.0, source="three sigma, by the lower quartile")

    lost: float = threshold(
        0.5, unit="share of the progress", low=0.0, high=10.0, source="half of it: no run came back from there"
    )
    wait: float = threshold(1.1, unit="ratio of the points", low=1.0, high=10.0, source="a climb that passes does so sooner")
    jump: float = threshold(1.25, unit="ratio", low=1.0, high=100.0, source="recorded sweeps: rates past the edge jump by more")
    jump_height: float = threshold(
        7.0, unit="sd of one point", low=1.0, high=100.0, source="recorded sweeps: lucky starts reach 5"
    )
    few_steps: int = threshold(50, unit="steps", low=1, high=10**6, source="the length of a preflight")
    wrecked_share: float = threshold(
        0.15, unit="share of the planned steps", low=0.0, high=1.0, source="half as long again as the longest usual warm-up"
    )
    return_height: float = threshold(
        4.5,
        unit="sd of one point",
        low=0.0,
        high=100.0,
        source="recorded sweeps: a first batch that is easy by luck stays below 3.5",
    )
    wrecked_points: int = threshold(12, unit="points", low=4, high=1000, source="a hump of the warm-up is shorter")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("climbs past its start", {TRAIN_LOSS: [*_FALL, 1.2, 2.2, 3.5, 4.0, 4.2, 4.4, 4.5]}),
        Example("gives back most of it", {TRAIN_LOSS: [*_FALL, 0.9, 1.1, 1.3, 1.4, 1.5, 1.5, 1.6, 1.6]}),
        Example("jumps in the warm-up and regains nothing", {TRAIN_LOSS: [2.9, 3.0, 3.1, 4.2, 4.8, 4.6, *_WRECK, *_WRECK]}),
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


class _LossDivergenceWatch(Watch):
    rule: LossDivergence

    def __init__(self, rule: LossDivergence) -> None:
        super().__init__(rule)
        self.courses = {TRAIN_LOSS: Course(is_eval=False), EVAL_LOSS: Course(is_eval=True)}
        self.train_then: float | None = None
        self.open: Finding | None = None
        self.n_first = 0
        self.is_wrecked = False

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        for name, course in self.courses.items():
            value = row.values.get(name)
            if value is None or not math.isfinite(value):
                continue
            if not curves[name].goes_negative:
                return self._see_metric(curves[name], course, curves)
            if self.open is not None and self.open.metric == name:
                past, self.open = self.open, None
                return self.resolved(past, row.step, f"{name} had climbed but goes below 0: as no likelihood, it may do so")
        return NOTHING

    def _see_metric(self, track: Track, course: Course, curves: Curves) -> Sequence[Finding]:
        if course.add(track) and course.is_eval:
            self.train_then = train_log(curves)
        if self.open is not None and self.open.metric != track.name:
            return NOTHING  # the other metric tells the story already
        if track.last <= track.floor:
            return NOTHING  # a hidden NaN is logged as 0: neither a climb nor a recovery
        climb = course.climb(track)
        climbed = None if climb is None else self._climbed(track, climb, curves)
        if climbed is not None:
            return self._tell(track, course, curves, climbed, never_back=False)
        wrecked = None if climb is None else self._wrecked(track, course, curves)
        if wrecked is not None:
            return self._tell(track, course, curves, wrecked, never_back=True)
        return self._maybe_resolve(track, course)

    def _climbed(self, track: Track, climb: Climb, curves: Curves) -> list[Evidence] | None:
        """A clear climb that gave back a large share of the progress."""
        if not self._is_clear(climb, track):
            return None
        is_eval, step = self.courses[track.name].is_eval, track.last_step
        if is_eval and not self._train_rises(curves):
            return None
        # Two witnesses, training and evaluation, need half the share each.
        other = curves.get(TRAIN_LOSS if is_eval else EVAL_LOSS)
        witness = None if other is None or not other.n else self.courses[other.name].climb(other)
        agree = other is not None and witness is not None and self._is_clear(witness, other)
        limit = self.rule.share * (0.5 if agree else 1.0)
        had_learned = agree or is_eval or climb.progress >= self.rule.height * (track.noise or 0.0)
        if not had_learned and climb.ratio < self.rule.climb**2:
            return None  # nothing was there to be given back: a hump of the warm-up looks like this
        if climb.share < limit:
            return None
        found = [
            Evidence(
                f"{track.name} over its best level, held by three quarters", climb.ratio, ">=", self.rule.climb, "ratio", step
            ),
            Evidence("progress given back", climb.share, ">=", limit, "share", step),
        ]
        if math.isfinite(climb.sigmas) and climb.sigmas >= self.rule.height:
            found.append(Evidence(f"{track.name} above its best level", climb.sigmas, ">=", self.rule.height, "sd", step))
        return found

    def _is_clear(self, climb: Climb, track: Track) -> bool:
        if track.last_step - track.first_step < self.rule.few_steps:
            return climb.ratio >= self.rule.climb**4  # single steps at the start differ by any factor
        if track.n < 2 * LEVEL:
            return climb.ratio >= self.rule.climb**2  # too few points for a noise
        return climb.ratio >= self.rule.climb and climb.sigmas >= self.rule.height

    def _wrecked(self, track: Track, course: Course, curves: Curves) -> list[Evidence] | None:
        """A jump above the start from which the loss never came back below the start: the warm-up passed the edge."""
        rule, noise = self.rule, track.noise
        start = math.log(max(track.head[0], track.floor))  # the jump may come with the second log already
        jump = course.peak - start
        if course.is_eval or noise is None or math.exp(jump) < rule.jump or track.n - course.n_at_peak < rule.wrecked_points:
            return None
        least = max(rule.wrecked_share * (curves.planned_steps or 0.0), track.first_step + rule.few_steps)
        held = course.held(track) - start
        if track.last_step < least or held < 0 or course.best < start - noise or curves.is_warming_up:
            return None
        noise = max(noise, noise_scale(track.blocks.values) or 0.0)  # of the whole course: a calm stretch proves nothing
        sigmas = jump / noise if noise > 0 else math.inf
        if sigmas < rule.jump_height or jump - held < rule.return_height * noise:
            return None  # no jump that came part of the way back, but a first point that was low by luck
        step = track.last_step
        return [
            Evidence(f"{TRAIN_LOSS} jumped over its start", math.exp(jump), ">=", rule.jump, "ratio", step),
            Evidence(f"{TRAIN_LOSS} jumped above its start", sigmas, ">=", rule.jump_height, "sd", step),
            Evidence(f"{TRAIN_LOSS} over its start, held by three quarters", math.exp(held), ">=", 1.0, "ratio", step),
        ]

    def _train_rises(self, curves: Curves) -> bool:
        """Whether the training loss stands above where it was at the best evaluation, or was first seen."""
        track, now = curves.train, train_log(curves)
        if track is None or now is None:
            return False
        then = self.train_then if self.train_then is not None else math.log(max(track.head[0], track.floor))
        return now - then > 0.5 * math.log(self.rule.climb)

    def _tell(
        self, track: Track, course: Course, curves: Curves, evidence: list[Evidence], *, never_back: bool
    ) -> Sequence[Finding]:
        told, level = self.open, median(track.recent_logs(LEVEL))
        past_start = never_back or level > track.start_log
        if never_back:
            text = f"{track.name} jumped to {math.exp(course.peak):.4g} from {track.head[0]:.4g} and never came back below it"
            why = f"{track.name} jumped above its start and has regained nothing in {track.n - course.n_at_peak} logs"
        else:
            text = (
                f"{track.name} climbed from {math.exp(course.best):.4g} (step {course.step}) to {math.exp(level):.4g}, stays up"
            )
            text += ", above where it started" if past_start else ""
            why = f"{track.name} climbed away from its best level after step {course.step}"
        cure = prescribe.lower_rate(curves, why, times=2 if past_start else 1)
        if told is None:
            self.n_first, self.is_wrecked = track.n, never_back
        # Half of the progress lost, or not regained for a tenth of the run: until then it may pass.
        is_late = track.last_step - track.first_step >= self.rule.few_steps
        is_sure = never_back or evidence[1].value >= self.rule.lost or track.n >= self.rule.wait * self.n_first
        was_sure = told is not None and told.severity is Severity.ERROR
        self.open = self.finding(
            track.name,
            track.last_step if told is None else told.first_step,
            track.last_step,
            text,
            *evidence,
            severity=Severity.ERROR if (is_late and is_sure) or was_sure else Severity.WARNING,
            prescription=cure,
        )
        return (self.open,)

    def _maybe_resolve(self, track: Track, course: Course) -> Sequence[Finding]:
        past = self.open
        # After a jump that was never regained the start is the mark, not the low that luck or the jump has left.
        mark = math.log(max(track.head[0], track.floor)) - course.best if self.is_wrecked else 0.5 * math.log(self.rule.climb)
        if past is None or course.still_up(track) > mark:
            return NOTHING
        self.open = None
        step = track.last_step
        text = f"{track.name} had climbed away from its best level but is back near it at step {step}"
        return self.resolved(past, step, text)

    def skip(self, curves: Curves) -> str | None:
        return curves.no_likelihood
