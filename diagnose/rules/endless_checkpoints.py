"""CD516 endless-checkpoints: every checkpoint is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Kind, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example, threshold
from diagnose.rules.settings import Remark, SettingsRule, flag, number, word

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class EndlessCheckpoints(SettingsRule):
    """Every checkpoint is kept, and there will be many.

    What it sees:
        No `save_total_limit`, and more checkpoints over the planned run than anyone compares.

    Why it matters:
        A checkpoint holds the trained weights and twice as much of the optimizer: a full disk ends the run.

    What to do:
        Set `save_total_limit=3` with `load_best_model_at_end=True`, which spares the best one.

    When it is wrong:
        Checkpoints of an adapter are small, and who studies a training wants them all.

    References:
        transformers `Trainer`: the rotation of checkpoints.
    """

    code: ClassVar[str] = "CD516"
    name: ClassVar[str] = "endless-checkpoints"
    severity: ClassVar[Severity] = Severity.INFO
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)
    asks: ClassVar[tuple[str, ...]] = ("save_total_limit", "save_strategy")

    most: float = threshold(20.0, unit="checkpoints", low=1.0, high=1e6, source="several times the 3 that are usually kept")

    firing: ClassVar[tuple[Example, ...]] = (
        Example(
            "a hundred", _FALL, settings={"save_total_limit": 0, "save_strategy": "steps", "save_steps": 10, "max_steps": 1000}
        ),
        Example("thirty epochs", _FALL, settings={"save_total_limit": 0, "save_strategy": "epoch", "num_train_epochs": 30}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example(
            "three", _FALL, settings={"save_total_limit": 3, "save_strategy": "steps", "save_steps": 10, "max_steps": 1000}
        ),
        Example(
            "two in all",
            _FALL,
            settings={"save_total_limit": 0, "save_strategy": "steps", "save_steps": 500, "max_steps": 1000},
        ),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """How many checkpoints the plan comes to."""
        limit, kind = number(curves, "save_total_limit"), word(curves, "save_strategy")
        every, planned = number(curves, "save_steps"), curves.planned_steps
        n = number(curves, "num_train_epochs") if kind == "epoch" else None
        if kind == "steps" and every and every >= 1 and planned:
            n = planned / every
        if limit is None or limit > 0 or n is None or n <= self.most:
            return None
        return Remark(
            f"save_total_limit is not set: {n:.0f} checkpoints over the planned run; usual is to keep 3",
            (Evidence("checkpoints over the planned run", n, ">", self.most),),
            "Set save_total_limit=3 with load_best_model_at_end=True.",
            "a full disk ends a run",
            (
                Change("save_total_limit", None, 3),
                Change("load_best_model_at_end", flag(curves, "load_best_model_at_end"), True),
            ),
        )
