"""CD103 zero-loss: the training loss is exactly 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Prescription, Row, Severity, Status
from diagnose.names import GRAD_NORM, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median

#: Losses whose median is the level before the zeros, and the start: the fewest that shrug off one outlier.
_LEVEL = 3


@dataclass(frozen=True)
class ZeroLoss(Rule):
    """The training loss is exactly 0, log after log.

    What it sees:
        Logged training losses of exactly 0. From the first log on with a gradient norm of 0 it is an error soon, without a
        gradient norm a little later. After other losses it is a warning that becomes an error when it lasts; where the loss
        had already faded to nearly 0, only a warning: the log rounds, or the run has memorized its data.

    Why it matters:
        Every label is masked (-100), so there is nothing to learn from; or the loss is NaN and the Trainer writes 0 for it.
        Both look like a perfect run.

    What to do:
        Print one example with its labels. Check that the collator's response marker is in the text, that a completion is
        left after cutting to `max_length`, and that the prompt is not all there is. Leave the learning rate alone.

    When it is wrong:
        Single zeros are examples without labels. Zeros at a fixed period come from logging each micro-step of an accumulated
        batch. In reinforcement learning a loss of 0 is normal, and the rule does not look.

    References:
        torch `CrossEntropyLoss`: `ignore_index=-100`; transformers `Trainer`: `logging_nan_inf_filter`.
    """

    code: ClassVar[str] = "CD103"
    name: ClassVar[str] = "zero-loss"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    meant_false_alarms: ClassVar[str] = "none: noise makes no loss of exactly 0, log after log"

    confirm: int = threshold(3, unit="points", low=2, high=100, source="recorded healthy runs have at most two zeros in a row")
    certain: int = threshold(6, unit="points", low=2, high=1000, source="a recorded KL-only loss starts with four zeros")
    period: int = threshold(16, unit="points", low=2, high=1000, source="largest usual gradient accumulation")
    faded: float = threshold(
        0.05, unit="share of the start", low=0.0, high=1.0, source="recorded runs that print 0.0000 fade to 0.04 or less first"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("every label masked", {TRAIN_LOSS: [0.0] * 4, GRAD_NORM: [0.0] * 4}),
        Example("zero from the first log, no gradient norm", {TRAIN_LOSS: [0.0] * 8}),
        Example("drops to zero from full height", {TRAIN_LOSS: [2.0, 1.9, 1.9, 1.8] + [0.0] * 8}),
        Example("memorized and rounded", {TRAIN_LOSS: [2.3, 0.5, 0.02, 0.001, 0.0001, 0.0, 0.0, 0.0]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("last value rounds to zero", {TRAIN_LOSS: [0.5, 0.1, 0.01, 0.001, 0.0, 0.0]}),
        Example("three of four micro-steps log 0", {TRAIN_LOSS: [2.0, 0.0, 0.0, 0.0] * 5}),
        Example(
            "hidden NaN, told by another rule", {TRAIN_LOSS: [2.0, 1.9] + [0.0] * 8, GRAD_NORM: [1.0, 1.0] + [math.nan] * 8}
        ),
        Example("loss of a GRPO run", {TRAIN_LOSS: [0.0] * 8, "train/reward": [0.1] * 8}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _ZeroLossWatch(self)


class _ZeroLossWatch(Watch):
    rule: ZeroLoss

    def __init__(self, rule: ZeroLoss) -> None:
        super().__init__(rule)
        self.open: Finding | None = None
        self.first = 0
        self.zeros = self.losses_in_a_row = self.stretch = 0
        self.head: list[float] = []
        self.tail: list[float] = []

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        loss, grad = row.values.get(TRAIN_LOSS), row.values.get(GRAD_NORM)
        if loss is None or not math.isfinite(loss):
            return NOTHING
        if loss != 0:
            return self._see_loss(row.step, loss)
        if grad is not None and not math.isfinite(grad):
            return NOTHING
        others = (curves.found.get("nan-loss"), curves.found.get("hidden-nan"))
        if any(f is not None and f.status is Status.OPEN for f in others):
            return NOTHING
        if not self.zeros:
            self.first, self.stretch = row.step, self.losses_in_a_row
        self.zeros += 1
        self.losses_in_a_row = 0
        if self.zeros < self._enough(grad, curves):
            return NOTHING
        self.open = self._report(row, grad)
        return (self.open,)

    def _enough(self, grad: float | None, curves: Curves) -> int:
        """Zeros in a row that are no accident."""
        if not self.head:
            return self.rule.confirm if grad == 0 else self.rule.certain
        accumulated = curves.settings.get("gradient_accumulation_steps")
        wait = accumulated if isinstance(accumulated, int) else 0
        # Fewer losses than that between zeros may be one micro-step in k that holds the whole batch's loss.
        return max(self.rule.confirm, self.rule.period if self.stretch < _LEVEL and not wait else 0, wait)

    def _report(self, row: Row, grad: float | None) -> Finding:
        zero = Evidence(TRAIN_LOSS, 0.0, "==", 0.0, step=row.step)
        said = f"{TRAIN_LOSS} is exactly 0 at {self.zeros} logs in a row since step {self.first}"
        if self.head:
            start, level = max(map(abs, self.head)), abs(median(self.tail))
            if level <= self.rule.faded * start:
                said += (
                    f", after it had faded from {start:.3g} to {level:.3g}: the log rounds it away, nothing is left to learn"
                )
                faded = Evidence("last losses over first", level / start, "<=", self.rule.faded, step=self.first)
                return self.finding(
                    TRAIN_LOSS, self.first, row.step, said, zero, faded, severity=Severity.WARNING, prescription=_STOP_HERE
                )
            said += f", straight after {level:.4g}"
        if grad is None:
            said += ": every label is masked, or the Trainer hides a NaN (grad_norm is not logged)"
        elif grad == 0:
            said += ", as is grad_norm: every label is masked"
        else:
            said += f" while grad_norm is {grad:.3g}: the log does not hold the loss that is trained on"
        sure = not grad and (not self.head or self.zeros >= self.rule.certain)
        severity = Severity.ERROR if sure else Severity.WARNING
        return self.finding(TRAIN_LOSS, self.first, row.step, said, zero, severity=severity, prescription=_LOOK_AT_LABELS)

    def _see_loss(self, step: int, loss: float) -> Sequence[Finding]:
        if len(self.head) < _LEVEL:
            self.head.append(loss)
        self.tail = [*self.tail, loss][-_LEVEL:]
        self.zeros = 0
        self.losses_in_a_row += 1
        if self.open is None or self.losses_in_a_row < 2:  # noqa: PLR2004 - one loss among zeros is no recovery
            return NOTHING
        past, self.open = self.open, None
        message = f"{TRAIN_LOSS} was exactly 0 from step {past.first_step} on and is {loss:.4g} again"
        return self.resolved(past, step, message)


_LOOK_AT_LABELS: Prescription = prescribe.other_cause(
    "Print one training example with its labels: find out why every label is -100 (response marker not found, completion cut "
    "off by max_length, prompt without completion), and log grad_norm.",
    "a loss of exactly 0 means that no token was trained on, or that the loss is NaN and is shown as 0",
)
_STOP_HERE: Prescription = prescribe.other_cause(
    "Judge the run by its evaluation loss and use the best checkpoint; log the loss with more digits.",
    "the training loss is below what the log can print",
)
