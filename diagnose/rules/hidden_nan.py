"""CD102 hidden-nan: the gradient is NaN while the logged loss looks fine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import LEVEL, Curves
from diagnose.model import Evidence, Finding, Kind, Prescription, Row, Severity, Status
from diagnose.names import BAD_GRADIENT, EVAL_LOSS, GRAD_NORM, LEARNING_RATE, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

_NAN = math.nan


@dataclass(frozen=True)
class HiddenNan(Rule):
    """The gradient is NaN or infinite log after log, while the logged loss is a finite number.

    What it sees:
        A gradient norm that is not finite beside a finite training loss: at once where that loss is exactly 0, which is how
        the Trainer writes a NaN; where the loss looks alive, once it lasts longer than a loss scaler skips. Without a logged
        gradient norm: losses of exactly 0 after other ones while the evaluation loss is not finite.

    Why it matters:
        `logging_nan_inf_filter` replaces a NaN loss by 0 or by an older average, so a dead run logs a perfect loss. Either
        the weights are NaN, or every step is skipped: nothing is learned in both cases.

    What to do:
        Go back to the last checkpoint before it and lower the learning rate by a factor of 3. If the gradient was never
        finite, or the rate was still near 0, the rate is not the cause: look at data types, padding and broken examples.

    When it is wrong:
        The fp16 loss scaler skips single steps, and several at the very start: harmless, and not reported. In a
        reinforcement-learning run a loss of 0 is normal and is not taken as a sign.

    References:
        transformers `Trainer`: `logging_nan_inf_filter`; torch `GradScaler`: the scale halves at each skipped step.
    """

    code: ClassVar[str] = "CD102"
    name: ClassVar[str] = "hidden-nan"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    also: ClassVar[tuple[str, ...]] = (GRAD_NORM, "eval/*")
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)
    meant_false_alarms: ClassVar[str] = "none: no noise makes a gradient that is not finite, and skipped steps are waited for"

    confirm: int = threshold(2, unit="points", low=1, high=100, source="a single NaN gradient is a skipped fp16 step")
    jump: float = threshold(1.4, unit="ratio", low=1.0, high=100.0, source="as for loss-divergence")
    skips: int = threshold(
        10,
        unit="steps",
        low=1,
        high=1000,
        source="ten skips in a row divide the scale by 1024; a usable scale is found by then",
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("loss 0 with a NaN gradient", {TRAIN_LOSS: [2.0, 1.8, 0.0], GRAD_NORM: [1.0, 1.2, _NAN]}),
        Example("every fp16 step skipped", {TRAIN_LOSS: [4.7, 4.6, 4.7, 4.5], GRAD_NORM: [_NAN] * 4}, settings={"fp16": True}),
        Example("no gradient logged", {TRAIN_LOSS: [2.0, 1.4, 0.0, 0.0, 0.0], EVAL_LOSS: [2.1, 1.5, _NAN, _NAN, _NAN]}),
        Example("comes back", {TRAIN_LOSS: [2.0, 1.9, 1.8, 1.7, 1.6], GRAD_NORM: [1.0, _NAN, _NAN, 1.0, 1.1]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("one skipped fp16 step", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6], GRAD_NORM: [1.0, math.inf, 1.0, 1.0]}),
        Example("the scaler finds its scale", {TRAIN_LOSS: [2.0, 2.1, 1.9, 2.0], GRAD_NORM: [math.inf] * 3 + [3.0]}, step=1),
        Example("every label masked", {TRAIN_LOSS: [0.0] * 4, GRAD_NORM: [0.0] * 4}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _HiddenNanWatch(self)


class _HiddenNanWatch(Watch):
    rule: HiddenNan

    def __init__(self, rule: HiddenNan) -> None:
        super().__init__(rule)
        self.open: Finding | None = None
        self.first = self.bad = self.clean = 0
        self.bad_rate: float | None = None

    def skip(self, curves: Curves) -> str | None:
        return None if curves.get(GRAD_NORM) is not None else f"the log has no {GRAD_NORM}"

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        loss, grad = row.values.get(TRAIN_LOSS), row.values.get(GRAD_NORM)
        if loss is None or not math.isfinite(loss):
            return NOTHING
        seen = curves.get(BAD_GRADIENT)
        if seen is not None and seen.last_step == row.step:
            return NOTHING  # a live doctor saw this gradient itself, and nan-loss tells of it
        sign: Evidence | None
        if grad is not None:
            sign = None if math.isfinite(grad) else Evidence(GRAD_NORM, grad, "is not finite", step=row.step)
        elif curves.get(GRAD_NORM) is None:
            sign = _dead_evaluation(loss, curves)
        else:
            return NOTHING
        if sign is None:
            return self._see_clean(row.step)
        self.clean = 0
        self.bad += 1
        if self.bad == 1:
            self.first, self.bad_rate = row.step, row.values.get(LEARNING_RATE)
        other = curves.found.get("nan-loss")
        told = other is not None and other.status is Status.OPEN
        if told:
            return NOTHING
        if self._is_sure(row, loss, sign, curves):
            return self._report(row, loss, sign, curves, Severity.ERROR)
        return self._report(row, loss, sign, curves, Severity.WARNING) if self._jumps(loss, sign, curves) else NOTHING

    def _jumps(self, loss: float, sign: Evidence, curves: Curves) -> bool:
        """Whether the loss jumped in the row of the NaN gradient: a skipped step leaves it where it was."""
        before = curves[TRAIN_LOSS].recent(LEVEL + 1)[:-1]
        is_loss = sign.what == GRAD_NORM and curves.kind is not Kind.RL and len(before) > 1
        return is_loss and loss >= self.rule.jump * max(before)

    def _is_sure(self, row: Row, loss: float, sign: Evidence, curves: Curves) -> bool:
        """Whether no loss scaler explains it: only NaN weights log a loss of 0, and a scaler soon finds a scale."""
        is_zero = loss == 0 and curves.kind is not Kind.RL
        if (self.open is not None and self.open.severity is Severity.ERROR) or (
            is_zero and (sign.what == GRAD_NORM or self.bad >= self.rule.confirm)
        ):
            return True
        no_scaler = curves.settings.get("bf16") is True or curves.settings.get("fp16") is False
        return self.bad >= self.rule.confirm and (no_scaler or row.step - self.first >= self.rule.skips)

    def _report(self, row: Row, loss: float, sign: Evidence, curves: Curves, severity: Severity) -> Sequence[Finding]:
        if sign.what != GRAD_NORM:
            cause = "a loss that is not finite is written as 0, and the model gives no other"
        elif loss == 0 and curves.kind is not Kind.RL:
            cause = "the Trainer writes 0 for a NaN loss, so the weights are NaN"
        elif curves.settings.get("fp16") is True:
            cause = "every fp16 step is skipped"
        else:
            cause = "either the weights are NaN or every step is skipped"
        since = f"at {self.bad} logs since step {self.first}" if self.bad > 1 else f"at step {self.first}"
        said = f"{sign.what} is {sign.value} while {TRAIN_LOSS} is {loss:.4g}, {since}: {cause}"
        metric = GRAD_NORM if sign.what == GRAD_NORM else TRAIN_LOSS
        cure = _cure(curves, self.first, self.bad_rate)
        if self.open is not None:
            metric, cure = self.open.metric, self.open.prescription or cure  # the metric is part of the finding's key
        if any(t.bad_in_a_row and t.name != sign.what and t.last_step >= self.first for t in curves.eval_losses):
            said += "; the evaluation loss is not finite either"
        evidence = (sign, Evidence(TRAIN_LOSS, loss, "is finite", step=row.step))
        self.open = self.finding(metric, self.first, row.step, said, *evidence, severity=severity, prescription=cure)
        return (self.open,)

    def _see_clean(self, step: int) -> Sequence[Finding]:
        self.clean += 1
        past = self.open
        if past is not None and self.clean < self.rule.confirm:
            return NOTHING
        self.open, self.bad = None, 0
        said = "a NaN was hidden here; gradient and loss are finite again"
        return NOTHING if past is None else self.resolved(past, step, said)


def _dead_evaluation(loss: float, curves: Curves) -> Evidence | None:
    """The sign that stands in for a gradient norm: a loss of 0 after other losses, with a NaN or infinite evaluation."""
    train = curves[TRAIN_LOSS]
    if loss != 0 or curves.kind is Kind.RL or not train.head or not any(train.head):
        return None
    bad = next((t for t in curves.eval_losses if t.bad_in_a_row), None)
    return None if bad is None else Evidence(bad.name, bad.last, "is not finite", step=bad.last_step)


def _cure(curves: Curves, step: int, rate: float | None) -> Prescription:
    """A lower rate where the run was alive before; data types where the gradient was never finite or the rate near 0."""
    grads, peak = curves.get(GRAD_NORM), prescribe.known_rate(curves)
    never = curves[TRAIN_LOSS].first_step >= step or (grads is not None and not grads.n)
    warming = rate is not None and peak is not None and rate <= 0.01 * peak
    if never or warming:
        when = "from the first log on" if never else f"at step {step}, while the learning rate was still near 0"
        return prescribe.other_cause(
            "Train in bf16 or fp32 instead of fp16, load the model in fp32, and check the data for empty or broken examples.",
            f"the gradient was not finite {when}, before the learning rate could do harm",
        )
    why = f"the gradient became non-finite at step {step}: go back to the last checkpoint before it"
    return prescribe.lower_rate(curves, why)
