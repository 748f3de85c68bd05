"""CD513 eval-save-mismatch: evaluated steps have no checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import Example
from diagnose.rules.settings import Remark, SettingsRule, number, word

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}

_EVALS = {**_FALL, EVAL_LOSS: [2.1, 1.9, 1.8, 1.7, 1.65, 1.6, 1.6, 1.6, 1.59, 1.58]}


@dataclass(frozen=True)
class EvalSaveMismatch(SettingsRule):
    """Steps that are evaluated are not saved, so the best of them may not exist on disk.

    What it sees:
        Nothing is saved, or evaluations and checkpoints come at different steps, as the settings tell. It is a warning where
        the best evaluation has passed and memorization is open.

    Why it matters:
        The checkpoint to keep is the one with the lowest evaluation loss. One that was never written cannot be kept.

    What to do:
        Save with the strategy of the evaluation and at the same steps.

    When it is wrong:
        A callback may save on its own, and a run that is thrown away needs no checkpoint.

    References:
        transformers `TrainingArguments`: `load_best_model_at_end` demands the same of both.
    """

    code: ClassVar[str] = "CD513"
    name: ClassVar[str] = "eval-save-mismatch"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = ("eval/*",)
    asks: ClassVar[tuple[str, ...]] = ("eval_strategy|evaluation_strategy", "save_strategy")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("by epoch and by steps", _EVALS, settings={"eval_strategy": "epoch", "save_strategy": "steps"}),
        Example("never saved", _EVALS, settings={"eval_strategy": "steps", "save_strategy": "no"}),
        Example(
            "saved every fifth time",
            _EVALS,
            settings={"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 10, "save_steps": 50},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("both by epoch", _EVALS, settings={"eval_strategy": "epoch", "save_strategy": "epoch"}),
        Example("the best is saved", _EVALS, settings={"eval_strategy": "steps", "save_strategy": "best"}),
        Example(
            "saved more often",
            _EVALS,
            settings={"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 20, "save_steps": 10},
        ),
    )

    def before_start(self, curves: Curves) -> Remark | None:
        """A checkpoint that was never written cannot be had later; who saves none at all knows that."""
        return None if word(curves, "save_strategy") == "no" else self.judge(curves)

    def judge(self, curves: Curves) -> Remark | None:
        """The steps of evaluations against those of checkpoints."""
        evals, saves = word(curves, "eval_strategy", "evaluation_strategy") or "no", word(curves, "save_strategy") or "no"
        if evals == "no" or saves == "best":
            return None
        every, saved = number(curves, "eval_steps"), number(curves, "save_steps")
        if evals != saves:
            said = f"eval_strategy {evals} but save_strategy {saves}: no checkpoint is sure to be at an evaluated step"
            evidence = Evidence("strategies that differ", 1.0, "==", 1.0)
        elif saves == "steps" and every and saved and every >= 1 and every % saved:
            said = f"eval_steps {every:g} is no multiple of save_steps {saved:g}: evaluated steps are left without a checkpoint"
            evidence = Evidence("steps from a checkpoint to an evaluation", every % saved, ">", 0.0, "steps")
        else:
            return None
        return Remark(
            said,
            (evidence,),
            "Save at the steps at which the run is evaluated: the same strategy, and save_steps equal to eval_steps.",
            "the best checkpoint must exist to be kept",
            (Change("save_strategy", saves, evals),) if evals != saves else (Change("save_steps", saved, every),),
            ("memorization",),
        )
