"""CD514 unkept-best: the best checkpoint may be deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import Example
from diagnose.rules.settings import Remark, SettingsRule, flag, number, word

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}

_EVALS = {**_FALL, EVAL_LOSS: [2.1, 1.9, 1.8, 1.7, 1.65, 1.6, 1.6, 1.6, 1.59, 1.58]}


@dataclass(frozen=True)
class UnkeptBest(SettingsRule):
    """Old checkpoints are deleted, and nothing keeps the best of them.

    What it sees:
        A `save_total_limit` without `load_best_model_at_end`, which would spare the best checkpoint. It is a warning where
        memorization is open: then the best one is old, and first to go.

    Why it matters:
        Never judge the last checkpoint: judge the one with the lowest evaluation loss, even if it lies in the middle of the
        second epoch. The limit deletes by age alone.

    What to do:
        Set `load_best_model_at_end=True` with `metric_for_best_model="eval_loss"`.

    When it is wrong:
        While the evaluation loss goes on falling, the last checkpoint is the best one.

    References:
        transformers `Trainer`: the rotation of checkpoints spares the best one only if it knows it.
    """

    code: ClassVar[str] = "CD514"
    name: ClassVar[str] = "unkept-best"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = ("eval/*",)
    asks: ClassVar[tuple[str, ...]] = ("load_best_model_at_end", "save_total_limit")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("three are kept", _EVALS, settings={"load_best_model_at_end": False, "save_total_limit": 3}),
        Example("one is kept", _EVALS, settings={"load_best_model_at_end": False, "save_total_limit": 1}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("the best is kept", _EVALS, settings={"load_best_model_at_end": True, "save_total_limit": 3}),
        Example("all are kept", _EVALS, settings={"load_best_model_at_end": False, "save_total_limit": 0}),
    )

    def before_start(self, curves: Curves) -> Remark | None:
        """All of it: a checkpoint that is deleted cannot be had later."""
        return self.judge(curves)

    def judge(self, curves: Curves) -> Remark | None:
        """Whether checkpoints are deleted while nothing marks the best."""
        limit, saves = number(curves, "save_total_limit"), word(curves, "save_strategy")
        if flag(curves, "load_best_model_at_end") is not False or not limit or limit < 1 or saves in ("no", "best"):
            return None
        kept = "the last checkpoint is" if limit == 1 else f"the last {limit:g} checkpoints are"
        return Remark(
            f"save_total_limit {limit:g} without load_best_model_at_end: only {kept} kept, the best one or not",
            (Evidence("save_total_limit", limit, ">=", 1.0),),
            'Set load_best_model_at_end=True and metric_for_best_model="eval_loss".',
            "the best checkpoint is the one to keep, not the last one",
            (
                Change("load_best_model_at_end", False, True),
                Change("metric_for_best_model", curves.settings.get("metric_for_best_model"), "eval_loss"),
            ),
            ("memorization",),
        )
