"""CD603 reference-mismatch: at the first log the policy already differs from its reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Kind, Row, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

CHOSEN, REJECTED = "train/rewards/chosen", "train/rewards/rejected"
#: Losses of TRL whose rewards are log-probabilities, with no reference to differ from.
_WITHOUT_REFERENCE = frozenset({"orpo", "simpo", "cpo", "cpo_simpo", "alphapo"})


@dataclass(frozen=True)
class ReferenceMismatch(Rule):
    """Rewards are far from 0 at the very first steps, where policy and reference should still agree.

    What it sees:
        The reward of chosen or rejected answers in the first log, at one of the first steps. The reward is the policy's
        log-probability less the reference's, times beta, so before the first update it is 0 for every loss that has a
        reference; after a few steps of warm-up it still is small.

    Why it matters:
        A wrong reference (another checkpoint, other precision, an adapter loaded on one side only, another chat template)
        puts an arbitrary offset on every pair, and the loss works on that instead of on the preference.

    What to do:
        Compute the log-probability of one answer under both models before training: they must agree. Load the reference
        from the same checkpoint, with the same precision and adapter as the policy starts from.

    When it is wrong:
        Losses without a reference (ORPO, SimPO, CPO) start with negative rewards on both sides; such a start is only
        judged when the settings name the loss. A log that begins after the first steps cannot be judged.

    References:
        Rafailov et al. 2023, "Direct Preference Optimization", equation 7: at the start the loss is ln 2.
    """

    code: ClassVar[str] = "CD603"
    name: ClassVar[str] = "reference-mismatch"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = (CHOSEN, REJECTED)
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.PREFERENCE})

    first: float = threshold(0.5, unit="reward", low=0.01, high=100.0, source="dropout and bf16 give a tenth of that at step 1")
    early: float = threshold(
        1.5, unit="reward", low=0.01, high=100.0, source="ten steps at a full rate give less: labelled runs"
    )
    steps: int = threshold(10, unit="steps", low=1, high=1000, source="the default of logging_steps in preference trainers")

    firing: ClassVar[tuple[Example, ...]] = (
        Example(
            "rewards of 10 at step 1",
            {TRAIN_LOSS: [0.3271, 4.337, 3.6449], CHOSEN: [9.77, 10.38, 8.67], REJECTED: [5.69, 14.29, 12.25]},
            step=1,
        ),
        Example("rejected off at step 10", {TRAIN_LOSS: [0.9, 0.8], CHOSEN: [-0.2, -0.1], REJECTED: [2.1, 2.0]}),
        Example(
            "the loss is known to have a reference",
            {TRAIN_LOSS: [0.9, 0.8], CHOSEN: [-3.2, -3.1], REJECTED: [-2.8, -2.9]},
            settings={"loss_type": "sigmoid"},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("starts at 0", {TRAIN_LOSS: [0.6931, 0.68], CHOSEN: [0.0, 0.02], REJECTED: [0.0, -0.03]}, step=1),
        Example("no reference, or a wrong one", {TRAIN_LOSS: [1.4, 1.3], CHOSEN: [-1.2, -1.1], REJECTED: [-1.6, -1.7]}),
        Example("the log begins late", {TRAIN_LOSS: [0.2, 0.2], CHOSEN: [2.0, 2.1], REJECTED: [-2.0, -2.2]}, step=100),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _ReferenceMismatchWatch(self)


class _ReferenceMismatchWatch(Watch):
    rule: ReferenceMismatch

    def __init__(self, rule: ReferenceMismatch) -> None:
        super().__init__(rule)
        self.is_done = False
        self.reason: str | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        chosen, rejected = row.values.get(CHOSEN), row.values.get(REJECTED)
        if self.is_done or chosen is None or rejected is None:
            return NOTHING
        self.is_done = True
        if row.step > self.rule.steps:
            self.reason = f"the first rewards were logged at step {row.step}, after the policy had left its reference"
            return NOTHING
        if not (math.isfinite(chosen) and math.isfinite(rejected)):
            self.reason = f"the first rewards, at step {row.step}, are not finite"
            return NOTHING
        limit = self.rule.first if row.step <= 1 else self.rule.early
        worst, name = max((abs(chosen), CHOSEN), (abs(rejected), REJECTED))
        if worst < limit:
            return NOTHING
        losses = curves.settings.get("loss_type")
        if isinstance(losses, str) and losses.lower() in _WITHOUT_REFERENCE:
            self.reason = f"the loss {losses} has no reference"
            return NOTHING
        if losses is None and chosen <= 0 and rejected <= 0:
            self.reason = (
                "both rewards start below 0, as they do where a loss has no reference, and the settings do not name the loss"
            )
            return NOTHING
        value = row.values[name]
        cure = prescribe.other_cause(
            "Compare the log-probability of one answer under policy and reference before training, and load both from the same "
            "checkpoint in the same precision.",
            "before the first update both are the same model, so the reward must be 0",
        )
        text = f"{name} is {value:.3g} at the first log (step {row.step}), where it should be 0"
        size = Evidence(f"distance of {name} from 0", worst, ">=", limit, "reward", row.step)
        return (self.finding(name, row.step, row.step, text, size, prescription=cure),)

    def skip(self, curves: Curves) -> str | None:
        return self.reason
