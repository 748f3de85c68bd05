"""CD515 wrong-best-metric: the best checkpoint is chosen by a metric that is missing, or the wrong way round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS, Direction, canonical, direction
from diagnose.rules.base import Example
from diagnose.rules.settings import Remark, SettingsRule, flag, word

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}

_EVALS = {**_FALL, EVAL_LOSS: [2.1, 1.9, 1.8, 1.7, 1.65, 1.6, 1.6, 1.6, 1.59, 1.58]}
_WER = {**_EVALS, "eval/wer": [0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.38, 0.37, 0.36]}


@dataclass(frozen=True)
class WrongBestMetric(SettingsRule):
    """The best checkpoint is chosen by a metric that was never logged, or the wrong way round.

    What it sees:
        A `metric_for_best_model` that is none of the logged evaluation metrics, or a `greater_is_better` that contradicts what
        the metric's name says.

    Why it matters:
        What `load_best_model_at_end` and early stopping keep is then the worst checkpoint, or none, without a word.

    What to do:
        Name a metric that the evaluation returns, and set `greater_is_better` with it: the Trainer takes every metric whose
        name does not end in `loss` for one that should rise.

    When it is wrong:
        The way of a metric is told from its name: one of your own may run the other way.

    References:
        transformers `TrainingArguments.__post_init__`: how `greater_is_better` is set when it is left out.
    """

    code: ClassVar[str] = "CD515"
    name: ClassVar[str] = "wrong-best-metric"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = ("eval/*",)
    asks: ClassVar[tuple[str, ...]] = ("metric_for_best_model",)

    firing: ClassVar[tuple[Example, ...]] = (
        Example("never logged", _EVALS, settings={"metric_for_best_model": "f1", "load_best_model_at_end": True}),
        Example("word errors that should rise", _WER, settings={"metric_for_best_model": "wer", "greater_is_better": True}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("the loss", _EVALS, settings={"metric_for_best_model": "loss", "greater_is_better": False}),
        Example(
            "word errors that should fall", _WER, settings={"metric_for_best_model": "eval_wer", "greater_is_better": False}
        ),
        Example("best is not asked for", _EVALS, settings={"metric_for_best_model": "f1", "load_best_model_at_end": False}),
    )

    def before_start(self, curves: Curves) -> Remark | None:
        """The way round; whether the metric is logged is not yet known."""
        return self.judge(curves)

    def judge(self, curves: Curves) -> Remark | None:
        """The metric's name against the log, then its way."""
        metric, rises = word(curves, "metric_for_best_model") or "", flag(curves, "greater_is_better")
        name = canonical(metric if metric.startswith("eval_") else f"eval_{metric}")
        if name is None or flag(curves, "load_best_model_at_end") is False:
            return None
        logged = [track for track in curves.tracks if track.startswith("eval/")]
        way = direction(name)
        if logged and name not in logged:
            said = f"metric_for_best_model {metric}: no such metric among the {len(logged)} that the evaluation logged"
            evidence = Evidence(f"points of {name}", 0.0, "==", 0.0)
        elif way is not None and rises is not None and rises is (way is Direction.LOWER):
            should = "fall" if way is Direction.LOWER else "rise"
            said = f"greater_is_better={rises} for {metric}, which should {should}: no better checkpoint is kept, but the worst"
            evidence = Evidence("greater_is_better", float(rises), "==", float(rises))
        else:
            return None
        return Remark(
            said,
            (evidence,),
            "Set metric_for_best_model to a metric that the evaluation returns, and greater_is_better to the way it should go.",
            "else the wrong checkpoint is kept as the best one",
            causes=("memorization",),
        )
