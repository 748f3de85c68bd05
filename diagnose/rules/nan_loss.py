"""CD101 nan-loss: the training loss is NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Kind, Prescription, Row, Severity, Status
from diagnose.names import GRAD_NORM, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

_NAN = math.nan


@dataclass(frozen=True)
class NanLoss(Rule):
    """The training loss became NaN or infinite.

    What it sees:
        A logged training loss that is not a finite number. It is an error, and a reason to stop, once the next logged loss
        is not finite either, or at once when the gradient norm of the same row is not finite too: then the optimizer has
        written NaN into the weights. Losses that become finite again resolve it.

    Why it matters:
        Nothing is learned from a NaN loss, and one bad update ruins every weight for good. Each further step is paid for
        nothing, and a checkpoint saved now is worthless.

    What to do:
        If the loss was finite before: lower the learning rate by a factor of 3 (twice, if the loss had climbed past its
        start) and go on from the last checkpoint before it. If it was NaN from the first log, the rate is not the cause:
        look at data types, masked labels and broken examples.

    When it is wrong:
        With `logging_nan_inf_filter=False` one transient NaN makes every later logged loss NaN although training goes on
        well: the gradient norm stays finite then, and the message says so.

    References:
        transformers `Trainer._maybe_log_save_evaluate`: the running loss keeps a NaN when the filter is off.
    """

    code: ClassVar[str] = "CD101"
    name: ClassVar[str] = "nan-loss"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
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

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        loss = row.values.get(TRAIN_LOSS)
        if loss is None:
            return NOTHING
        if math.isfinite(loss):
            return self._see_finite(row.step)
        survived, self.clean = self.clean > 0 and self.open is not None, 0
        track = curves[TRAIN_LOSS]
        grad = row.values.get(GRAD_NORM)
        first = row.step if self.open is None else self.open.first_step
        if self.open is None:
            self.value = loss
        sure = (self.open is not None and self.open.severity is Severity.ERROR) or (
            track.bad_in_a_row >= self.rule.confirm or (grad is not None and not math.isfinite(grad))
        )
        said = f"train/loss is {loss} since step {first}" if first != row.step else f"train/loss is {loss} at step {row.step}"
        if grad is not None and math.isfinite(grad) and track.bad_in_a_row >= self.rule.confirm:
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
        return (
            self.finding(
                TRAIN_LOSS,
                past.first_step,
                step,
                message,
                *past.evidence,
                severity=Severity.WARNING,
                status=Status.RESOLVED,
                prescription=past.prescription,
            ),
        )


def _cure(curves: Curves, step: int) -> Prescription:
    """Data types and labels for a NaN from the first log, else a lower rate, by 9 where the loss had passed its start."""
    track = curves[TRAIN_LOSS]
    if not track.n:
        return prescribe.other_cause(
            "Print one batch with its labels, train in bf16 or fp32 instead of fp16, and check the data for empty examples.",
            f"train/loss was not finite at its first log (step {step}), before the learning rate could do harm",
        )
    climbed = track.n >= 3 and track.level > track.start  # noqa: PLR2004 - a level needs three points
    past = ", after it had climbed past its start" if climbed else ""
    return prescribe.lower_rate(curves, f"train/loss became non-finite at step {step}{past}", times=2 if climbed else 1)
