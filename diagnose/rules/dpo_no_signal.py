"""CD601 dpo-no-signal: the preference margin stays at 0, so the policy does not leave its reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves, Track
from diagnose.levels import mean
from diagnose.model import Evidence, Finding, Kind, Prescription, Row, Severity
from diagnose.names import LEARNING_RATE, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

TRAIN_MARGIN, EVAL_MARGIN = "train/rewards/margins", "eval/rewards/margins"
_LN2 = math.log(2)
_RECENT = 24


@dataclass(frozen=True)
class DpoNoSignal(Rule):
    """The margin between chosen and rejected answers stays at 0.

    What it sees:
        Reward margins that are exactly 0 at log after log although the learning rate is not: the policy is its own
        reference. It is an error, and a reason to stop, once it has lasted. Or margins so close to 0 for so long that
        they cannot be told from their noise: then the policy moves, but not apart; that is a warning.

    Why it matters:
        At the first step the policy equals the reference: margin 0, loss ln 2. A run that stays there has learned no
        preference, however long it lasts.

    What to do:
        Margin exactly 0: print the number of trainable parameters, and check that the reference is not the very model
        that is trained (an adapter that stays on for the reference does that). Margin near 0: triple the learning rate.

    When it is wrong:
        A log that rounds to few digits shows 0 for a margin that grows slowly. Losses without a reference have margins
        of another meaning, and theirs are hardly ever exactly 0.

    References:
        Rafailov et al. 2023, "Direct Preference Optimization": the implicit reward is 0 where policy and reference agree.
    """

    code: ClassVar[str] = "CD601"
    name: ClassVar[str] = "dpo-no-signal"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (f"{TRAIN_MARGIN}|{EVAL_MARGIN}",)
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.PREFERENCE})

    zeros: int = threshold(4, unit="points", low=2, high=1000, source="step 1 and a step at rate 0 are 0 in healthy runs")
    zero_steps: int = threshold(15, unit="steps", low=2, high=10**6, source="healthy labelled runs leave 0 by step 3 or 10")
    certain: int = threshold(
        20, unit="points", low=2, high=10**5, source="patience before a stop: nobody saw so many by chance"
    )
    certain_steps: int = threshold(50, unit="steps", low=2, high=10**6, source="patience before a stop, half a warm-up")
    sigmas: float = threshold(2.0, unit="standard errors", low=0.1, high=10.0, source="what a reader calls no trend")
    small: float = threshold(0.05, unit="reward", low=0.0, high=10.0, source="a twentieth of a usual final margin")
    points: int = threshold(32, unit="points", low=8, high=10**5, source="twice the points that a noisy batch margin needs")
    evals: int = threshold(8, unit="evaluations", low=4, high=1000, source="fewer cannot tell 0 from their noise")
    steps: int = threshold(100, unit="steps", low=1, high=10**6, source="labelled runs show a margin by then")

    firing: ClassVar[tuple[Example, ...]] = (
        Example(
            "the reference is the policy",
            {TRAIN_LOSS: [0.6932] * 24, TRAIN_MARGIN: [0.0] * 24, LEARNING_RATE: [1.4e-5 - 1e-7 * i for i in range(24)]},
        ),
        Example(
            "evaluated only, and no margin comes",
            {
                TRAIN_LOSS: [2.62, 2.61, 2.6, 2.61, 2.63, 2.65, 2.62, 2.63, 2.6, 2.59, 2.62, 2.57],
                EVAL_MARGIN: [0.019, 0.017, 0.018, -0.005, -0.002, 0.017, 0.049, -0.005, 0.001, 0.003, 0.026, -0.02],
            },
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example(
            "zero at the start only", {TRAIN_LOSS: [0.6931, 0.69, 0.67] * 2, TRAIN_MARGIN: [0.0, 0.01, 0.05, 0.1, 0.2, 0.3]}
        ),
        Example(
            "zero in the warm-up",
            {
                TRAIN_LOSS: [0.6931] * 6,
                TRAIN_MARGIN: [0.0] * 6,
                LEARNING_RATE: [0.0, 1e-9, 2e-9, 3e-9, 4e-9, 5e-9],
            },
        ),
        Example(
            "small but growing",
            {TRAIN_LOSS: [0.69 - 0.0005 * i for i in range(48)], TRAIN_MARGIN: [0.001 * i for i in range(48)]},
        ),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _DpoNoSignalWatch(self)


class _DpoNoSignalWatch(Watch):
    rule: DpoNoSignal

    def __init__(self, rule: DpoNoSignal) -> None:
        super().__init__(rule)
        self.n_zero = self.first = 0
        self.open: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        name = TRAIN_MARGIN if TRAIN_MARGIN in row.values else EVAL_MARGIN
        margin, rate = row.values.get(name), row.values.get(LEARNING_RATE)
        if margin is None or not math.isfinite(margin) or (rate is not None and rate <= 0) or curves.is_warming_up:
            return NOTHING
        if name == TRAIN_MARGIN:
            if margin == 0:
                return self._see_zero(row, curves)
            self.n_zero = 0
        elif TRAIN_MARGIN in curves.tracks:
            return NOTHING  # training tells more often
        return self._see_small(curves[name], curves)

    def _see_zero(self, row: Row, curves: Curves) -> Sequence[Finding]:
        rule = self.rule
        if not self.n_zero:
            self.first = row.step
        self.n_zero += 1
        if self.n_zero < rule.zeros or row.step < rule.zero_steps:
            return NOTHING
        train, rate = curves.train, curves.peak_lr
        said = f"{TRAIN_MARGIN} is exactly 0 at {self.n_zero} logs in a row since step {self.first}"
        said += "" if rate is None else f" at a learning rate up to {rate:.3g}"
        if train is not None and abs(train.last - _LN2) < 1e-3:  # noqa: PLR2004 - the digits that logs print
            said += ", the loss is ln 2"
        cure = prescribe.other_cause(
            "Print the number of trainable parameters, and make sure that the reference is a copy of the model, or the model "
            "with its adapter switched off.",
            "policy and reference give the same probabilities: the weights do not move, or both are one model",
        )
        sure = self.n_zero >= rule.certain and row.step >= rule.certain_steps
        zero = Evidence("margins of exactly 0 in a row", float(self.n_zero), ">=", float(rule.zeros), "points", row.step)
        return self._tell(TRAIN_MARGIN, row.step, said, zero, severity=Severity.ERROR if sure else Severity.WARNING, cure=cure)

    def _see_small(self, track: Track, curves: Curves) -> Sequence[Finding]:
        rule, step = self.rule, track.last_step
        recent = track.recent(_RECENT)
        level = mean(recent)
        error = math.sqrt(mean([(v - level) * (v - level) for v in recent]) / len(recent))
        if self.open is not None and not (level <= rule.sigmas * error and level <= rule.small):
            past, self.open = self.open, None
            return self.resolved(past, step, f"{track.name} was at 0 and is {level:.3g} at step {step}")
        needed = rule.points if track.name == TRAIN_MARGIN else rule.evals
        if track.n < needed or step < rule.steps or not (level <= rule.sigmas * error and abs(level) <= rule.small):
            return NOTHING
        said = f"{track.name} is {level:.2g} on average over the last {len(recent)} points, no more than its noise"
        return self._tell(
            track.name,
            step,
            said,
            Evidence(f"{track.name}, mean", level, "<=", rule.small, "reward", step),
            Evidence(f"{track.name}, mean over its error", level / error if error else 0.0, "<=", rule.sigmas, "", step),
            severity=Severity.WARNING,
            cure=prescribe.raise_rate(curves, f"after {step} steps chosen and rejected answers are no further apart"),
        )

    def _tell(
        self, metric: str, step: int, said: str, *evidence: Evidence, severity: Severity, cure: Prescription
    ) -> Sequence[Finding]:
        told = self.open
        if told is not None and told.severity is Severity.ERROR:
            severity = Severity.ERROR
        first = step if told is None else told.first_step
        self.open = self.finding(metric, first, step, said, *evidence, severity=severity, prescription=cure)
        return (self.open,)
