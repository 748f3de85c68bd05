"""CD706 missing-eval: a long run without any evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Finding, Prescription, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import Example, Rule, Watch, threshold

#: Steps between evaluations that the prescription names: the low end of the usual 50 to 100.
_EVAL_STEPS = 50


@dataclass(frozen=True)
class MissingEval(Rule):
    """The run was never evaluated, so memorization cannot be seen.

    What it sees:
        No evaluation metric at all, although the training went over its data more than once or logged many points.

    Why it matters:
        The training loss falls whether the model learns or memorizes. Without an evaluation no best checkpoint is known, and
        the last one is the only choice.

    What to do:
        Hold back a few hundred examples and evaluate every 50 to 100 steps.

    When it is wrong:
        The run may be evaluated elsewhere, in a log that was not read. A single pass over much data hardly memorizes.

    References:
        transformers `TrainingArguments`: `eval_strategy` is "no" unless it is set.
    """

    code: ClassVar[str] = "CD706"
    name: ClassVar[str] = "missing-eval"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)

    points: int = threshold(20, unit="points", low=1, high=10_000, source="a run of so many logs has room for an evaluation")
    epochs: float = threshold(1.0, unit="epochs", low=0.0, high=1000.0, source="memorization needs a second look at the data")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("many points", {TRAIN_LOSS: [2.0 - 0.02 * i for i in range(30)]}),
        Example("three epochs", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.4], "epoch": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("evaluated", {TRAIN_LOSS: [2.0 - 0.02 * i for i in range(30)], EVAL_LOSS: [None] * 29 + [1.5]}),
        Example("short", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}),
        Example("one pass", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6], "epoch": [0.25, 0.5, 0.75, 1.0]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _MissingEvalWatch(self)


class _MissingEvalWatch(Watch):
    rule: MissingEval

    def close(self, curves: Curves) -> Sequence[Finding]:
        train = curves[TRAIN_LOSS]
        n, epoch = train.n + train.n_bad, curves.epoch or 0.0
        if any(name.startswith("eval/") for name in curves.tracks):
            return ()
        if n >= self.rule.points:
            evidence = Evidence(f"points of {TRAIN_LOSS}", float(n), ">=", float(self.rule.points))
        elif epoch > self.rule.epochs:
            evidence = Evidence("epoch", epoch, ">", self.rule.epochs)
        else:
            return ()
        over = f" over {epoch:.3g} epochs" if epoch else ""
        points = "point" if n == 1 else "points"
        said = f"no evaluation beside {n} {points} of {TRAIN_LOSS}{over}: memorization cannot be seen"
        return (self.finding(TRAIN_LOSS, train.first_step, curves.last_step, said, evidence, prescription=_cure(curves)),)


def _cure(curves: Curves) -> Prescription:
    before = curves.settings.get("eval_strategy")
    # The state file of a run without evaluation holds a default for eval_steps that was never in force.
    return Prescription(
        (Change("eval_strategy", before, "steps"), Change("eval_steps", None, _EVAL_STEPS)),
        "Hold back a few hundred examples and evaluate on them every 50 to 100 steps.",
        "only a loss on examples that were not trained on tells learning from memorizing",
    )
