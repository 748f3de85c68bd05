"""CD101 nan-loss: the training loss is NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Kind, Prescription, Row, Severity
from diagnose.names import BAD_GRADIENT, DROPPED, GRAD_NORM, MADE, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

_NAN = math.nan


@dataclass(frozen=True)
class NanLoss(Rule):
    """The training loss became NaN or infinite.

    What it sees:
        A logged training loss that is not a finite number. It is an error, and a reason to stop, once the next logged loss
        is not finite either, or at once when the gradient norm of the same row is not finite too: then the optimizer has
        written NaN into the weights. Losses that become finite again resolve it. Inside a training it also sees the gradient
        of every step: a bad update is dropped before it reaches the weights, which is a warning, and an error once the next
        step is bad too; one that could not be dropped is an error at once.

    Why it matters:
        Nothing is learned from a NaN loss, and one bad update ruins every weight for good. Each further step is paid for
        nothing, and a checkpoint saved now is worthless.

    What to do:
        If the loss was finite before: lower the learning rate by a factor of 3 (twice, if the loss had climbed past its
        start) and go on from the last checkpoint before it. If it was NaN from the first log, the rate is not the cause:
        look at data types, masked labels and broken examples.

    When it is wrong:
        With `logging_nan_inf_filter=False` one transient NaN makes every later logged loss NaN although training goes on
        well: the gradient norm stays finite then, and it stays a warning that says so.

    References:
        transformers `Trainer._maybe_log_save_evaluate`: the running loss keeps a NaN when the filter is off.
    """

    code: ClassVar[str] = "CD101"
    name: ClassVar[str] = "nan-loss"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    also: ClassVar[tuple[str, ...]] = (BAD_GRADIENT,)
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)
    vital: ClassVar[bool] = True
    meant_false_alarms: ClassVar[str] = "none: no noise makes a loss that is not finite"

    confirm: int = threshold(
        2, unit="points", low=1, high=100, source="one NaN may be a skipped step; two logged in a row are not"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("NaN after a while", {TRAIN_LOSS: [2.0, 1.8, 1.7, _NAN, _NAN, _NAN]}),
        Example("NaN from the first log", {TRAIN_LOSS: [_NAN, _NAN, _NAN]}),
        Example("infinite, with the gradient", {TRAIN_LOSS: [2.0, 1.9, math.inf], GRAD_NORM: [1.0, 1.0, _NAN]}),
        Example("NaN now and then", {TRAIN_LOSS: [5.6, 5.3, _NAN, 5.7, _NAN, 5.1, _NAN, 5.9, 6.1]}),
        Example("one NaN that passes", {TRAIN_LOSS: [2.0, 1.9, _NAN, 1.8, 1.7, 1.6]}),
        Example("one update dropped", {TRAIN_LOSS: [2.0, 1.9, 1.8], BAD_GRADIENT: [None, DROPPED, None]}),
        Example("an update made", {TRAIN_LOSS: [2.0, None], BAD_GRADIENT: [None, MADE]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("finite", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}),
        Example("one skipped fp16 step", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6], GRAD_NORM: [1.0, _NAN, 1.0, 1.0]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _NanLossWatch(self)


class _NanLossWatch(Watch):
    rule: NanLoss

    def __init__(self, rule: NanLoss) -> None:
        super().__init__(rule)
        self.open: Finding | None = None
        self.value = _NAN
        self.clean = 0
        self.gradients = _BadGradients(self)

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        told = self.gradients.see(row, curves)
        return told or self._see_loss(row, curves)

    def _see_loss(self, row: Row, curves: Curves) -> Sequence[Finding]:
        loss = row.values.get(TRAIN_LOSS)
        if loss is None:
            return NOTHING
        if math.isfinite(loss):
            return self._see_finite(row.step)
        if self.gradients.knows(row.step):
            return NOTHING
        survived, self.clean = self.clean > 0 and self.open is not None, 0
        track = curves[TRAIN_LOSS]
        grad = row.values.get(GRAD_NORM)
        first = row.step if self.open is None else self.open.first_step
        if self.open is None:
            self.value = loss
        lives = grad is not None and math.isfinite(grad)
        carried = lives and curves.settings.get("logging_nan_inf_filter") is False
        sure = (self.open is not None and self.open.severity is Severity.ERROR) or (
            (track.bad_in_a_row >= self.rule.confirm and not carried) or (grad is not None and not lives)
        )
        said = f"train/loss is {loss} since step {first}" if first != row.step else f"train/loss is {loss} at step {row.step}"
        if lives and track.bad_in_a_row >= self.rule.confirm:
            said += f" while grad_norm is {grad:.3g}: the log may only carry an old NaN along (logging_nan_inf_filter=False)"
        self.open = self.finding(
            TRAIN_LOSS,
            first,
            row.step,
            said,
            Evidence(TRAIN_LOSS, self.value, "is not finite", step=first),
            severity=Severity.ERROR if sure else Severity.WARNING,
            prescription=self._cure(curves, first, survived),
        )
        return (self.open,)

    def _cure(self, curves: Curves, first: int, survived: bool) -> Prescription | None:
        if survived:
            return prescribe.other_cause(
                "Keep the trained weights in fp32 (bf16 autocast), and look at the batches of these steps for broken examples.",
                "train/loss is NaN now and then and finite in between, so the weights are alive and the rate is not the cause",
            )
        return _cure(curves, first) if self.open is None else self.open.prescription

    def _see_finite(self, step: int) -> Sequence[Finding]:
        if self.open is None:
            return NOTHING
        self.clean += 1
        if self.clean < self.rule.confirm:
            return NOTHING
        past, self.open, self.clean = self.open, None, 0
        message = f"train/loss was {self.value} at step {past.first_step} and is finite again"
        return self.resolved(past, step, message)


class _BadGradients:
    """Gradients that were not finite, as a live doctor tells of them step by step."""

    def __init__(self, watch: _NanLossWatch) -> None:
        self.watch = watch
        self.open: Finding | None = None
        self.last = 0
        self.in_a_row = self.all = 0

    def knows(self, step: int) -> bool:
        """Whether the gradient of this step is known to have been bad: its log then tells nothing new."""
        return self.open is not None and step == self.last

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        kind = row.values.get(BAD_GRADIENT)
        if kind is None:
            return self._see_log(row)
        step = row.step
        self.in_a_row = self.in_a_row + 1 if step == self.last + 1 else 1
        self.all = self.all + 1 if self.open is not None else 1
        self.last = step
        first = step if self.open is None else self.open.first_step
        sure = kind != DROPPED or self.in_a_row >= self.watch.rule.confirm
        is_error = sure or (self.open is not None and self.open.severity is Severity.ERROR)
        steps = f"at step {step}" if first == step else f"at {self.all} steps from {first} to {step}"
        state = "the update was dropped and the weights are as before" if kind == DROPPED else "the weights took the update"
        self.open = self.watch.finding(
            GRAD_NORM,
            first,
            step,
            f"the gradient was not finite {steps}: {state}",
            Evidence("steps in a row with a NaN or infinite gradient", float(self.in_a_row), ">=", 1.0, "steps", step),
            severity=Severity.ERROR if is_error else Severity.WARNING,
            prescription=_cure(curves, first)
            if is_error
            else prescribe.other_cause(
                "Look at the samples of this step for empty or broken examples; the training may go on.",
                "one bad step between good ones comes from its data more often than from the rate",
            ),
        )
        return (self.open,)

    def _see_log(self, row: Row) -> Sequence[Finding]:
        """A log of a later step with a finite gradient norm, or without one, with a finite loss, ends it."""
        sign = row.values.get(GRAD_NORM, row.values.get(TRAIN_LOSS))
        if self.open is None or sign is None or not math.isfinite(sign) or row.step <= self.last:
            return NOTHING
        past, self.open = self.open, None
        return self.watch.resolved(past, row.step, f"{past.message}; it is finite again")


def _cure(curves: Curves, step: int) -> Prescription:
    """Data types and labels for a NaN from the first log, else a lower rate, by 9 where the loss had passed its start."""
    track = curves.get(TRAIN_LOSS)
    if track is None or not track.n:
        return prescribe.other_cause(
            "Print one batch with its labels, train in bf16 or fp32 instead of fp16, and check the data for empty examples.",
            f"it was not finite at the first log (step {step}), before the learning rate could do harm",
        )
    climbed = track.n >= 3 and track.level > track.start  # noqa: PLR2004 - a level needs three points
    past = ", after it had climbed past its start" if climbed else ""
    return prescribe.lower_rate(curves, f"train/loss became non-finite at step {step}{past}", times=2 if climbed else 1)
