"""CD304 no-gradient: the gradient norm is 0 or vanishes although there is a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Row, Severity
from diagnose.names import GRAD_NORM, LEARNING_RATE, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median

#: Gradient norms whose median is the earlier level.
_LEVEL = 5
#: Losses whose median is held against the start, which is the median of as many.
_START = 3


@dataclass(frozen=True)
class NoGradient(Rule):
    """The gradient norm is 0, or next to nothing beside its earlier level, while the loss is not.

    What it sees:
        Gradient norms of exactly 0 log after log with a loss above 0; after other norms also such as are a vanishing share
        of the first ones. From the first log on it is an error once it has lasted and the loss has not fallen; else a
        warning. Where the learning rate is 0, or the loss is 0, other rules tell it.

    Why it matters:
        No parameter changes. The parameters are frozen, detached from the loss, or not in the optimizer, and every step is
        paid for nothing.

    What to do:
        Count the trainable parameters and check that the optimizer holds those very ones. With gradient checkpointing on a
        frozen base, call `enable_input_require_grads()`. Leave the learning rate alone.

    When it is wrong:
        Some distributed engines log 0 because they keep the gradient elsewhere: a loss that falls all the same silences the
        rule or resolves its finding. In reinforcement learning a batch without reward spread has no gradient; the rule does
        not look there.

    References:
        peft `prepare_model_for_kbit_training`; torch `checkpoint`: no gradient when no input requires one.
    """

    code: ClassVar[str] = "CD304"
    name: ClassVar[str] = "no-gradient"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (GRAD_NORM, TRAIN_LOSS)
    also: ClassVar[tuple[str, ...]] = (LEARNING_RATE,)
    meant_false_alarms: ClassVar[str] = "none: noise makes no gradient of 0"

    confirm: int = threshold(3, unit="points", low=2, high=100, source="recorded healthy runs never log a gradient norm of 0")
    certain: int = threshold(6, unit="points", low=2, high=1000, source="twice `confirm`: such an error stops the run")
    vanished: float = threshold(
        1e-6,
        unit="share of its start",
        low=0.0,
        high=0.1,
        source="float32 carries 7 digits: below that an update is rounded away",
    )
    fall: float = threshold(
        0.9,
        unit="share of the start",
        low=0.1,
        high=1.0,
        source="a loss below that was learned: the gradient is logged wrongly",
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("frozen from the start", {TRAIN_LOSS: [1.5, 1.6, 1.4, 1.5, 1.5, 1.6, 1.4], GRAD_NORM: [0.0] * 7}),
        Example("gone after a while", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.7, 1.7, 1.7], GRAD_NORM: [1.0, 1.1, 0.9, 0.0, 0.0, 0.0]}),
        Example("vanishes", {TRAIN_LOSS: [2.0, 1.8, 1.8, 1.8, 1.8], GRAD_NORM: [1.0, 1.1, 1e-9, 1e-9, 1e-9]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("falls with the loss", {TRAIN_LOSS: [2.0, 0.1, 1e-3, 1e-5, 1e-7], GRAD_NORM: [1.0, 1e-1, 1e-3, 1e-5, 1e-7]}),
        Example("no labels", {TRAIN_LOSS: [0.0] * 6, GRAD_NORM: [0.0] * 6}),
        Example("schedule used up", {TRAIN_LOSS: [1.5] * 6, GRAD_NORM: [0.0] * 6, LEARNING_RATE: [0.0] * 6}),
        Example("the engine logs no gradient", {TRAIN_LOSS: [2.0, 1.5, 1.2, 1.0, 0.9, 0.8], GRAD_NORM: [0.0] * 6}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _NoGradientWatch(self)


class _NoGradientWatch(Watch):
    rule: NoGradient

    def __init__(self, rule: NoGradient) -> None:
        super().__init__(rule)
        self.open: Finding | None = None
        self.first = 0
        self.gone = 0
        self.head: list[float] = []

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        grad, loss = row.values.get(GRAD_NORM), row.values.get(TRAIN_LOSS)
        if grad is None or loss is None or not abs(grad) < float("inf"):
            return NOTHING
        limit = self.rule.vanished * median(self.head) if self.head else 0.0
        if grad > limit:
            if len(self.head) < _LEVEL:
                self.head.append(grad)
            self.gone = 0
            return self._resolve(row.step, f"{GRAD_NORM} is {grad:.3g} again")
        train, rate = curves[TRAIN_LOSS], row.values.get(LEARNING_RATE)
        faded = abs(loss) <= 1e-3 * abs(train.start)  # a gradient that went with its loss is not missed
        if loss == 0 or faded or (rate is not None and rate <= 0):
            self.gone = 0
            return NOTHING
        if not self.gone and self.open is None:
            self.first = row.step
        self.gone += 1
        # Few losses keep the rule quiet; more of them are needed to take a finding back.
        level = median(train.recent(_START)) if self.open is None else train.level
        if level < self.rule.fall * train.start and not self.head:
            return self._resolve(row.step, f"{TRAIN_LOSS} falls all the same, so {GRAD_NORM} is logged wrongly")
        if self.gone < (self.rule.confirm if self.head else self.rule.certain):
            return NOTHING
        said = (
            f"{GRAD_NORM} is {grad:.3g} at {self.gone} logs in a row since step {self.first} while {TRAIN_LOSS} is {loss:.4g}"
        )
        if self.head:
            said += f"; it was {median(self.head):.3g} before"
        self.open = self.finding(
            GRAD_NORM,
            self.first,
            row.step,
            said,
            Evidence(GRAD_NORM, grad, "<=", limit, step=row.step),
            severity=Severity.WARNING if self.head else Severity.ERROR,
            prescription=_CURE,
        )
        return (self.open,)

    def _resolve(self, step: int, because: str) -> Sequence[Finding]:
        past, self.open = self.open, None
        if past is None:
            return NOTHING
        return self.resolved(past, step, f"{GRAD_NORM} was 0 or next to it from step {past.first_step} on; {because}")


_CURE = prescribe.other_cause(
    "Count the trainable parameters, check that the optimizer holds those very ones, and with gradient checkpointing on a "
    "frozen base call model.enable_input_require_grads().",
    "no gradient reaches the trained parameters although there is a loss",
)
