"""CD502 many-epochs: the data is gone over more often than a fine-tuning needs."""

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
class ManyEpochs(SettingsRule):
    """The plan goes over the data more often than a fine-tuning needs.

    What it sees:
        More planned epochs than usual. It is a warning where memorization is open.

    Why it matters:
        A large model knows its few examples by heart after a few passes; what follows is over-fitting.

    What to do:
        Train 2 to 3 epochs. If they do not suffice, there is too little data, or the task wants retrieval, not tuning.

    When it is wrong:
        Small encoders, classifiers and speech models on little data do well with ten epochs and more, as long as the evaluation
        loss still falls. With early stopping, the plan is only an upper bound.

    References:
        Zhou et al. 2023 (LIMA) train long on purpose, and choose the checkpoint by hand.
    """

    code: ClassVar[str] = "CD502"
    name: ClassVar[str] = "many-epochs"
    severity: ClassVar[Severity] = Severity.WARNING
    asks: ClassVar[tuple[str, ...]] = ("num_train_epochs",)

    usual: float = threshold(3.0, unit="epochs", low=1.0, high=1000.0, source="usual for fine-tuning are 1 to 3 passes")
    many: float = threshold(
        5.0, unit="epochs", low=1.0, high=1000.0, source="from 5 passes on it is nearly always over-fitting"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("four", _FALL, settings={"num_train_epochs": 4}),
        Example("twenty", _FALL, settings={"num_train_epochs": 20}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("three", _FALL, settings={"num_train_epochs": 3}),
        Example("not told", _FALL),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """The planned epochs against the usual."""
        epochs = number(curves, "num_train_epochs")
        if epochs is None or epochs <= self.usual:
            return None
        more = ", and that many are nearly always over-fitting" if epochs >= self.many else ""
        return Remark(
            f"num_train_epochs {epochs:g} is above the usual 1 to {self.usual:g} of a fine-tuning{more}",
            (Evidence("num_train_epochs", epochs, ">", self.usual, "epochs"),),
            f"Train 2 to {self.usual:g} epochs; if they do not suffice, get more data.",
            "a model that sees the same examples again and again learns them by heart",
            (Change("num_train_epochs", epochs, self.usual, self.usual / epochs),),
            ("memorization",),
        )
