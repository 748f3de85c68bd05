"""CD703 scaled-loss: the training loss is a whole multiple of the evaluation loss."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import LEVEL, Curves
from diagnose.model import Evidence, Finding, Row, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median


@dataclass(frozen=True)
class ScaledLoss(Rule):
    """The training loss is k times the evaluation loss, with k a whole number, from the first evaluation on.

    What it sees:
        At each evaluation, the median of the training losses since the last one over the evaluation loss. That ratio stays
        near one whole number above 1, from the first evaluation on. It is a warning when that number is the gradient
        accumulation of the settings, else a hint.

    Why it matters:
        The log adds the losses of an accumulated batch instead of averaging them. Where the gradient is scaled as well, the
        effective learning rate and the clipping are off by the same factor.

    What to do:
        Divide the logged training loss by k when comparing, and update the training library. If the gradient norm is k times
        too large too, check how the loss is divided by the number of tokens or micro-batches.

    When it is wrong:
        A training loss with other terms in it (label smoothing, auxiliary losses, strong augmentation) may by chance sit at
        a whole multiple. A gap that only opens later is another story, and the rule drops it.

    References:
        transformers 4.46 release notes: gradient accumulation and `num_items_in_batch`.
    """

    code: ClassVar[str] = "CD703"
    name: ClassVar[str] = "scaled-loss"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS, EVAL_LOSS)

    evals: int = threshold(3, unit="evaluations", low=2, high=100, source="fewer agree by chance")
    tolerance: float = threshold(
        0.1, unit="ratio", low=0.0, high=0.24, source="noise of a median of a few losses; below a quarter, so that 2 is not 3"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("four times", {TRAIN_LOSS: [8.0, 7.6, 7.2, 6.8, 6.4], EVAL_LOSS: [1.96, 1.87, 1.8, 1.71, 1.62]}),
        Example(
            "eight, as accumulated",
            {TRAIN_LOSS: [16.0, 15.0, 14.0, 13.0], EVAL_LOSS: [1.95, 1.9, 1.78, 1.66]},
            settings={"gradient_accumulation_steps": 8},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("same level", {TRAIN_LOSS: [2.0, 1.9, 1.8, 1.7], EVAL_LOSS: [1.96, 1.87, 1.8, 1.71]}),
        Example("the gap opens later", {TRAIN_LOSS: [2.0, 2.4, 3.0, 3.6, 3.6, 3.6], EVAL_LOSS: [1.9, 1.8, 1.8, 1.8, 1.8, 1.8]}),
        Example("no whole number", {TRAIN_LOSS: [5.0, 4.75, 4.5, 4.25], EVAL_LOSS: [2.0, 1.9, 1.8, 1.7]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _ScaledLossWatch(self)


class _ScaledLossWatch(Watch):
    rule: ScaledLoss

    def __init__(self, rule: ScaledLoss) -> None:
        super().__init__(rule)
        self.open: Finding | None = None
        self.since: deque[float] = deque(maxlen=LEVEL)
        self.first = self.n = 0
        self.k = math.nan
        self.is_off = False

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        loss, other = row.values.get(TRAIN_LOSS), row.values.get(EVAL_LOSS)
        if loss is not None and math.isfinite(loss):
            self.since.append(loss)
        if other is None or self.is_off or not self.since or not math.isfinite(other):
            return NOTHING
        ratio = median(list(self.since)) / other if other else math.inf
        self.since.clear()
        if not self.n:
            self.first = row.step
            self.k = float(round(ratio)) if math.isfinite(ratio) else 0.0
        self.n += 1
        if self.k <= 1 or not abs(ratio / self.k - 1) <= self.rule.tolerance:
            self.is_off = True
            return self._drop(row.step, ratio)
        if self.n < self.rule.evals:
            return NOTHING
        known = curves.settings.get("gradient_accumulation_steps") == self.k
        said = f"{TRAIN_LOSS} is {self.k:.0f} times {EVAL_LOSS} at all {self.n} evaluations since step {self.first}"
        if known:
            said += ", as many times as gradients are accumulated"
        evidence = Evidence(
            f"distance of the ratio from {self.k:.0f}", abs(ratio / self.k - 1), "<=", self.rule.tolerance, step=row.step
        )
        severity = Severity.WARNING if known else Severity.INFO
        self.open = self.finding(TRAIN_LOSS, self.first, row.step, said, evidence, severity=severity, prescription=_CURE)
        return (self.open,)

    def _drop(self, step: int, ratio: float) -> Sequence[Finding]:
        if self.open is None:
            return NOTHING
        past, self.open = self.open, None
        return self.resolved(
            past,
            step,
            f"{TRAIN_LOSS} was {self.k:.0f} times {EVAL_LOSS} from step {past.first_step} on and is {ratio:.3g} times it now",
        )


_CURE = prescribe.other_cause(
    "Divide the logged training loss by that number before comparing, update transformers and accelerate, and check that the "
    "loss is divided by the accumulated tokens once.",
    "accumulated losses are added where they should be averaged",
)
