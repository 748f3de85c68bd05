"""CD301 flat-loss: nothing is learned, from the start."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.chance import guessing_among
from diagnose.curves import Curves, Track
from diagnose.evaluations import stand_still
from diagnose.model import Evidence, Finding, Kind, Row, Severity
from diagnose.names import EVAL_LOSS, LEARNING_RATE, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median, trend

#: Standard errors of a one-sided 5 % test.
_ONE_SIDED = 1.645
_LEVEL = [1.39, 1.38, 1.4, 1.39, 1.37, 1.4, 1.38, 1.41, 1.39, 1.4, 1.38, 1.39]


@dataclass(frozen=True)
class FlatLoss(Rule):
    """Nothing is learned: the loss is where it was at the start.

    What it sees:
        The whole course of the training loss has moved by less than a few percent and shows no significant fall after its
        first third, and the evaluation loss, where there is one, has not moved either. It says so when the level is that
        of guessing (ln of the classes or of the vocabulary). It is an error, and a reason to stop, after many logs and steps,
        or when the evaluations repeat bit by bit: then the weights do not change.

    Why it matters:
        Every further step costs and changes nothing.

    What to do:
        If evaluations repeat exactly, find out why the weights do not change: rate 0, frozen or detached parameters. Otherwise
        raise the learning rate by a factor of 3; at the level of guessing after a rate above the usual range, lower it.

    When it is wrong:
        A run that goes on from a trained checkpoint may have nothing left to learn. A warm-up longer than the logs so far
        looks flat; the rule waits while the logged rate still rises. Speech and from-scratch runs can rest on a first
        plateau before they fall: a fall after the finding resolves it.

    References:
        Mann 1945 and Kendall 1975 for the trend, Sen 1968 for its slope. Limits were set on the labelled curves
        behind `fixtures/public`.
    """

    code: ClassVar[str] = "CD301"
    name: ClassVar[str] = "flat-loss"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    also: ClassVar[tuple[str, ...]] = ("eval/*",)
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.SUPERVISED})
    meant_false_alarms: ClassVar[str] = "5e-2 a run: one-sided, to end one that moved by `sure`; a warning errs more"

    moved: float = threshold(
        0.04, unit="share of the start", low=0.0, high=1.0, source="labelled curves: flat ones stay within"
    )
    fall: float = threshold(
        0.01, unit="share of the start", low=0.0, high=1.0, source="a significant fall this small is still flat"
    )
    chance: float = threshold(0.05, unit="probability", low=0.0, high=0.5, source="Mann-Kendall, two-sided")
    eval_moved: float = threshold(
        0.02, unit="share of the start", low=0.0, high=1.0, source="as moved; evaluations have less noise"
    )
    metric_gain: float = threshold(0.1, unit="share of the error", low=0.0, high=1.0, source="a task that improved")
    points: int = threshold(8, unit="points", low=8, high=10_000, source="with six after the first third a trend can be told")
    confirm: float = threshold(
        1.2, unit="ratio of the points", low=1.0, high=10.0, source="a second look, since the test is made at every point"
    )
    end_points: int = threshold(
        40, unit="points and steps", low=8, high=10_000, source="nearly a preflight, logged step by step"
    )
    steps: int = threshold(20, unit="steps", low=1, high=10**6, source="fewer steps move nothing at any usual rate")
    error: float = threshold(
        0.1, unit="share of the start", low=0.0, high=1.0, source="standard error of a fall over the run, at most twice `moved`"
    )
    evals: int = threshold(4, unit="evaluations", low=2, high=1000, source="four equal ones stand for twenty train points")
    frozen_steps: int = threshold(10, unit="steps", low=1, high=10**6, source="fp16 may skip its first few steps")
    share: float = threshold(
        0.05, unit="share of the planned steps", low=0.0, high=1.0, source="the usual warm-up, during which little moves"
    )
    stop_steps: int = threshold(
        250, unit="steps", low=1, high=10**9, source="five times the preflight of 50 steps that should show a falling loss"
    )
    blind_steps: int = threshold(
        2000, unit="steps", low=1, high=10**9, source="as long as the planned length is not known: long runs begin flat"
    )
    sure: float = threshold(
        0.05, unit="share of the start", low=0.0, high=1.0, source="`moved` with the error of a noisy start"
    )
    stop_share: float = threshold(
        0.25, unit="share of the planned steps", low=0.0, high=1.0, source="readers ended flat runs at a fifth to a third"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("at ln 4 with evaluations", {TRAIN_LOSS: _LEVEL, EVAL_LOSS: [1.386] * 12}),
        Example("forty logs without a trend", {TRAIN_LOSS: [*_LEVEL, *_LEVEL, *_LEVEL, *_LEVEL[:4]]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("slow but steady", {TRAIN_LOSS: [2.0 - 0.01 * i for i in range(40)]}),
        Example("one early fall, then level", {TRAIN_LOSS: [2.0, 1.6, *_LEVEL, *_LEVEL, *_LEVEL]}),
        Example(
            "still warming up",
            {TRAIN_LOSS: [*_LEVEL, *_LEVEL], LEARNING_RATE: [1e-6 * (i + 1) for i in range(24)]},
        ),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _FlatLossWatch(self)


class _FlatLossWatch(Watch):
    rule: FlatLoss

    def __init__(self, rule: FlatLoss) -> None:
        super().__init__(rule)
        self.open: Finding | None = None
        self.since: int | None = None
        self.same_evals = 0
        self.last_eval = math.nan
        self.first_metrics: dict[str, float] = {}

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        value = row.values.get(EVAL_LOSS)
        if value is not None:
            self.same_evals = self.same_evals + 1 if value == self.last_eval else 1
            self.last_eval = value
        for name, v in row.values.items():
            if name.startswith("eval/"):
                self.first_metrics.setdefault(name, v)
        track = curves.train
        # Tested at every point of a short run and at 32 to 64 places of each doubling of a long one: bounded work a row.
        if track is None or track.goes_negative or (track.n > 64 and track.n % (track.n // 32)):  # noqa: PLR2004
            return NOTHING
        if "loss-divergence" in curves.found or "zero-loss" in curves.found:
            return NOTHING
        if not self._has_enough(track, curves) or curves.is_warming_up:
            return NOTHING
        evidence = self._evidence(track, curves)
        if evidence is None:
            self.since = None
            return self._maybe_resolve(row.step)
        if self.since is None:
            self.since = track.n
        if self.open is None and track.n < self.rule.confirm * self.since and self.same_evals < self.rule.evals:
            return NOTHING
        self.open = self._tell(track, row.step, curves, evidence)
        return (self.open,)

    def _has_enough(self, track: Track, curves: Curves) -> bool:
        taken = curves.last_step - track.first_step
        planned, frozen = curves.planned_steps, self.same_evals >= self.rule.evals
        least = self.rule.stop_steps if planned is None else self.rule.share * planned
        if taken < least and not (frozen and planned is None):
            return False
        if track.n >= self.rule.points and taken >= self.rule.steps:
            return True
        enough = self.rule.evals
        return _n_evals(curves) >= enough and track.n >= enough and taken >= self.rule.frozen_steps

    def _evidence(self, track: Track, curves: Curves, *, at_end: bool = False) -> list[Evidence] | None:
        rule, step = self.rule, track.last_step
        logs, steps = track.blocks.values, track.blocks.steps
        moved = abs(track.start_log - median(logs[-max(3, len(logs) // 4) :]))
        # Evaluations that repeat bit by bit leave little doubt, and what was found is only given up for a clear move.
        limit = rule.moved * (3 if self.same_evals >= rule.evals else 2 if self.open is not None else 1)
        if moved > limit:
            return None
        evals = stand_still(curves, self.first_metrics, rule.eval_moved, rule.moved, rule.metric_gain)
        if evals is None:
            return None
        found = [Evidence(f"{TRAIN_LOSS} away from its start", moved, "<=", limit, "share", step), *evals]
        if len(evals) and curves.eval_losses[0].n >= rule.evals:
            return found
        if track.n < rule.points:
            return None
        if track.fall_error > rule.error or (
            not at_end and self.open is None and moved + _ONE_SIDED * track.fall_error > 1.5 * rule.moved
        ):
            return None  # the noise could hide a fall of this size
        third = len(logs) // 3
        test = trend(steps[third:], logs[third:])
        if test is None:
            return None
        fallen = -test.slope * (steps[-1] - steps[third])
        chance = rule.chance * (0.1 if self.open is not None else 1.0)
        if test.tau < 0 and test.p < chance and fallen > min(rule.fall, 3 * (track.noise or math.inf)):
            return None
        if test.p >= chance:
            found.append(Evidence("chance of its trend", test.p, ">=", chance, "", step))
        else:
            found.append(Evidence(f"{TRAIN_LOSS} fallen since its first third", fallen, "<=", rule.fall, "share", step))
        return found

    def _tell(self, track: Track, step: int, curves: Curves, evidence: list[Evidence]) -> Finding:
        frozen = self.same_evals >= self.rule.evals
        level = math.exp(median(track.blocks.values))
        k = guessing_among(level, curves.settings)
        message = f"{TRAIN_LOSS} is {level:.4g}, where it was at the start, after {track.n} logs"
        if frozen:
            message += f"; the last {self.same_evals} values of {EVAL_LOSS} are identical"
            repeats = Evidence("identical evaluations in a row", self.same_evals, ">=", self.rule.evals, "evaluations", step)
            evidence = [*evidence, repeats]
        if k is not None:
            message += f"; ln {k} = {math.log(k):.4g}: it guesses"
        planned = curves.planned_steps
        least = self.rule.blind_steps if planned is None else max(self.rule.stop_steps, self.rule.stop_share * planned)
        long = step - track.first_step >= least
        often = track.n >= 2 * self.rule.points or _n_evals(curves) > self.rule.evals
        # What the noise could hide counts as moved, and an open finding's slack does not count for a stop.
        sure = long and often and evidence[0].value + _ONE_SIDED * track.fall_error <= self.rule.sure
        was_sure = self.open is not None and self.open.severity is Severity.ERROR
        return self.finding(
            TRAIN_LOSS,
            step if self.open is None else self.open.first_step,
            step,
            message,
            *evidence,
            severity=Severity.ERROR if frozen or sure or was_sure else Severity.WARNING,
            prescription=prescribe.standstill(curves, is_frozen=frozen, guesses=k is not None),
        )

    def _maybe_resolve(self, step: int) -> Sequence[Finding]:
        past, self.open = self.open, None
        if past is None:
            return NOTHING
        message = f"{TRAIN_LOSS} was flat until about step {past.last_step} and moves now"
        return self.resolved(past, step, message, Severity.INFO)

    def close(self, curves: Curves) -> Sequence[Finding]:
        """A log that ends without having moved, too short or too noisy to be called flat while it went on: a fact, no alarm."""
        track, told = curves.train, curves.found
        if track is None or track.goes_negative or self.open is not None or curves.is_warming_up:
            return NOTHING
        few = track.n < self.rule.end_points or track.last_step - track.first_step < self.rule.end_points
        if few or "loss-divergence" in told or "zero-loss" in told:
            return NOTHING
        evidence = self._evidence(track, curves, at_end=True)
        if evidence is None:
            return NOTHING
        found = self._tell(track, curves.last_step, curves, evidence)
        return (dataclasses.replace(found, severity=Severity.INFO),)

    def skip(self, curves: Curves) -> str | None:
        track = curves.train
        if track is not None and track.goes_negative:
            return "the loss goes below 0, so it is no likelihood"
        if track is not None and not self._has_enough(track, curves):
            return (
                f"needs {self.rule.points} logs of {TRAIN_LOSS} over {self.rule.steps} steps or {self.rule.evals} evaluations"
            )
        return None


def _n_evals(curves: Curves) -> int:
    return max((t.n for t in curves.eval_losses), default=0)
