"""CD104 nan-eval: an evaluation loss is NaN or infinite while training goes on well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Prescription, Row, Severity, Status
from diagnose.names import EVAL_LOSS, TRAIN_LOSS, is_eval_loss
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

_NAN = math.nan


@dataclass(frozen=True)
class NanEval(Rule):
    """An evaluation loss is NaN or infinite although the training loss is finite.

    What it sees:
        A logged evaluation loss, of any evaluation set, that is not a finite number while the last training loss is one. It
        is a warning and never stops a run. Finite evaluation losses in a row resolve it.

    Why it matters:
        Without an evaluation loss nobody sees memorization, and no best checkpoint can be chosen by it. The training itself
        is not harmed.

    What to do:
        Look at the evaluation set: every label of an example masked or cut off, an empty example, targets longer than the
        input allows (CTC), or fp16 overflow on long items. Evaluate in bf16 or fp32. Leave the learning rate alone.

    When it is wrong:
        A single NaN among finite values comes from one batch, such as a masked-language-model batch without a masked token,
        and says nothing of the model. Where the weights are NaN, nan-loss or hidden-nan tells it instead.

    References:
        torch `CrossEntropyLoss`: the mean over no labels is NaN; torch `CTCLoss`: `zero_infinity`.
    """

    code: ClassVar[str] = "CD104"
    name: ClassVar[str] = "nan-eval"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = ("eval/*",)
    also: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    meant_false_alarms: ClassVar[str] = "none: no noise makes a loss that is not finite"

    clean: int = threshold(
        2, unit="evaluations", low=1, high=100, source="one finite evaluation may be the lucky one among NaN ones"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("every evaluation", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6], EVAL_LOSS: [None, _NAN, None, _NAN]}),
        Example("CTC", {TRAIN_LOSS: [2.0, 1.8, 1.7], EVAL_LOSS: [math.inf] * 3, "eval/wer": [0.9, 0.6, 0.5]}),
        Example("one evaluation set of two", {TRAIN_LOSS: [2.0, 1.8], "eval/a_loss": [2.1, 1.9], "eval/b_loss": [_NAN, _NAN]}),
        Example("once", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6], EVAL_LOSS: [2.1, _NAN, 1.8, 1.7]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("finite", {TRAIN_LOSS: [2.0, 1.8, 1.7], EVAL_LOSS: [2.1, 1.9, 1.8]}),
        Example("training is NaN too", {TRAIN_LOSS: [2.0, _NAN, _NAN], EVAL_LOSS: [2.1, _NAN, _NAN]}),
        Example("another metric is NaN", {TRAIN_LOSS: [2.0, 1.8], EVAL_LOSS: [2.1, 1.9], "eval/f1": [_NAN, _NAN]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _NanEvalWatch(self)


class _NanEvalWatch(Watch):
    rule: NanEval

    def __init__(self, rule: NanEval) -> None:
        super().__init__(rule)
        self.open: dict[str, Finding] = {}
        self.clean: dict[str, int] = {}

    def skip(self, curves: Curves) -> str | None:
        return None if curves.eval_losses else "the log has no eval loss"

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        said: list[Finding] = []
        for name, value in row.values.items():
            if is_eval_loss(name):
                said += self._see_one(name, value, row.step, curves)
        return said

    def _see_one(self, name: str, value: float, step: int, curves: Curves) -> Sequence[Finding]:
        past = self.open.get(name)
        if math.isfinite(value):
            self.clean[name] = self.clean.get(name, 0) + 1
            if past is None or self.clean[name] < self.rule.clean:
                return NOTHING
            del self.open[name]
            message = f"{name} was {past.evidence[0].value} at step {past.first_step} and is finite again"
            return self.resolved(past, step, message)
        self.clean[name] = 0
        if _is_dead(curves):
            return NOTHING
        track = curves[name]
        first = step if past is None else past.first_step
        always = not track.n
        if always:
            said = f"{name} is {value} at every evaluation so far ({track.n_bad})"
        elif track.bad_in_a_row > 1:
            said = f"{name} is {value} at {track.bad_in_a_row} evaluations in a row"
        else:
            said = f"{name} is {value} at step {step}, after {track.n} finite evaluations"
        train = curves.train
        if train is not None and math.isfinite(train.last):
            said += f" while {TRAIN_LOSS} is {train.last:.4g}"
        evidence = Evidence(name, value, "is not finite", step=step)
        self.open[name] = self.finding(name, first, step, said, evidence, prescription=_cure(always))
        return (self.open[name],)


def _is_dead(curves: Curves) -> bool:
    """Whether the training is NaN too: then the evaluation has no story of its own."""
    train = curves.train
    if train is not None and train.bad_in_a_row:
        return True
    others = (curves.found.get("nan-loss"), curves.found.get("hidden-nan"))
    return any(f is not None and f.status is Status.OPEN for f in others)


def _cure(always: bool) -> Prescription:
    where = "every evaluation" if always else "single evaluations"
    return prescribe.other_cause(
        "Print the labels of the evaluation set: look for examples whose labels are all masked or cut off by max_length, and "
        "for empty ones; evaluate in bf16 or fp32, as long items overflow in fp16.",
        f"{where} gave no finite loss while the training loss is finite: the evaluation data or its arithmetic is at fault",
    )
