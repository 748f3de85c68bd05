"""CD804 untrained-parameters: what should be trained is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example
from diagnose.rules.settings import Remark, StartRule, number

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class UntrainedParameters(StartRule):
    """Nothing can be learned, or less than was meant: parameters are frozen, or the optimizer does not hold them.

    What it sees:
        No trainable parameter at all, or trainable parameters that the optimizer does not hold, as a live doctor counted them
        at the start.

    Why it matters:
        Gradients are computed and paid for, and the weights never move: the loss stays flat, and every rate looks too low.

    What to do:
        Attach the adapter, or unfreeze, before the Trainer and its optimizer are made; after `get_peft_model` call
        `print_trainable_parameters()`.

    When it is wrong:
        A custom optimizer may update parameters that stand in no parameter group.

    References:
        peft `PeftModel.print_trainable_parameters`.
    """

    code: ClassVar[str] = "CD804"
    name: ClassVar[str] = "untrained-parameters"
    severity: ClassVar[Severity] = Severity.ERROR
    asks: ClassVar[tuple[str, ...]] = ("trainable_parameters",)

    firing: ClassVar[tuple[Example, ...]] = (
        Example("all frozen", _FALL, settings={"trainable_parameters": 0}),
        Example("the optimizer holds others", _FALL, settings={"trainable_parameters": 1000, "unoptimized_parameters": 1000}),
        Example("it lacks some", _FALL, settings={"trainable_parameters": 1000, "unoptimized_parameters": 10}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("all are held", _FALL, settings={"trainable_parameters": 1000, "unoptimized_parameters": 0}),
        Example("not told", _FALL),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """The two counts."""
        trainable, left_out = number(curves, "trainable_parameters"), number(curves, "unoptimized_parameters") or 0.0
        if trainable is None or trainable < 0 or (trainable and left_out <= 0):
            return None
        if not trainable:
            said = "no parameter is trainable: nothing can be learned"
            evidence = Evidence("trainable parameters", 0.0, "==", 0.0)
        else:
            said = f"the optimizer does not hold {left_out:,.0f} of {trainable:,.0f} trainable parameters: they will not move"
            evidence = Evidence("trainable parameters that the optimizer does not hold", left_out, ">", 0.0)
        return Remark(
            said,
            (evidence,),
            "Attach the adapter, or unfreeze, before the Trainer and its optimizer are made.",
            "only what the optimizer holds is updated",
            severity=None if left_out >= trainable else Severity.WARNING,
        )
