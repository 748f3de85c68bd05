"""CD508 strong-weight-decay: the weights are pulled to zero harder than usual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example, threshold
from diagnose.rules.settings import Remark, SettingsRule, number

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class StrongWeightDecay(SettingsRule):
    """The weights are pulled to zero harder than a fine-tuning needs.

    What it sees:
        A `weight_decay` above that of pre-training. It is a warning where the loss does not move.

    Why it matters:
        Fine-tuning wants to stay near the weights that it started from, and decay pulls away from them. On an adapter it
        undoes what is learned.

    What to do:
        Set `weight_decay=0.01`.

    When it is wrong:
        Some versions do not apply it to adapters at all, and AdamW multiplies it with the learning rate: at low rates even a
        strong one does little.

    References:
        Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization".
    """

    code: ClassVar[str] = "CD508"
    name: ClassVar[str] = "strong-weight-decay"
    severity: ClassVar[Severity] = Severity.WARNING
    asks: ClassVar[tuple[str, ...]] = ("weight_decay",)

    most: float = threshold(0.1, unit="decay", low=0.0, high=100.0, source="usual is 0.01; pre-training takes up to 0.1")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("half", _FALL, settings={"weight_decay": 0.5}),
        Example("one", _FALL, settings={"weight_decay": 1}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("as usual", _FALL, settings={"weight_decay": 0.01}),
        Example("as in pre-training", _FALL, settings={"weight_decay": 0.1}),
        Example("none", _FALL, settings={"weight_decay": 0.0}),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """The decay against that of pre-training."""
        decay = number(curves, "weight_decay")
        if decay is None or decay <= self.most:
            return None
        return Remark(
            f"weight_decay {decay:g} is above the {self.most:g} of pre-training; usual is 0.01",
            (Evidence("weight_decay", decay, ">", self.most),),
            "Set weight_decay=0.01.",
            "it pulls away from the weights that the fine-tuning started from",
            (Change("weight_decay", decay, 0.01, 0.01 / decay),),
            ("flat-loss",),
        )
