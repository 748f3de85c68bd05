"""CD403 best-checkpoint-passed: the last checkpoint is not the best one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Prescription, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

_TRAIN = [2.0, 1.7, 1.5, 1.4, 1.3, 1.25, 1.2, 1.18]


@dataclass(frozen=True)
class BestCheckpointPassed(Rule):
    """The last evaluation is not the best one.

    What it sees:
        The evaluation loss was lower before the end, by more than its own noise where that is known, and by more than a
        trifle in any case.

    Why it matters:
        Never judge a run by its last checkpoint: the one with the lowest evaluation loss is the one to keep, even if it is in
        the middle of the second epoch.

    What to do:
        Use the checkpoint of the step named, or set `load_best_model_at_end=True` with `metric_for_best_model="eval_loss"`.

    When it is wrong:
        On a small evaluation set the best one is partly luck; the difference to the last is then of no consequence either.

    References:
        Prechelt 1998, "Early stopping - but when?". Gasser et al. 1986 for the noise.
    """

    code: ClassVar[str] = "CD403"
    name: ClassVar[str] = "best-checkpoint-passed"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[tuple[str, ...]] = (EVAL_LOSS,)
    hushed_by: ClassVar[tuple[str, ...]] = ("memorization", "loss-divergence", "nan-eval")

    worse: float = threshold(0.01, unit="share of the best", low=0.0, high=1.0, source="below it two seeds differ as much")
    height: float = threshold(2.0, unit="sd of one evaluation", low=0.0, high=50.0, source="two sigma")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("best in the middle", {TRAIN_LOSS: _TRAIN, EVAL_LOSS: [2.1, 1.8, 1.6, 1.5, 1.5, 1.52, 1.55, 1.58]}),
        Example("best before a jump at the end", {TRAIN_LOSS: _TRAIN, EVAL_LOSS: [2.1, 1.8, 1.6, 1.5, 1.45, 1.42, 1.4, 1.9]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("best at the end", {TRAIN_LOSS: _TRAIN, EVAL_LOSS: [2.1, 1.8, 1.6, 1.5, 1.45, 1.42, 1.4, 1.39]}),
        Example("a trifle above the best", {TRAIN_LOSS: _TRAIN, EVAL_LOSS: [2.1, 1.8, 1.6, 1.5, 1.45, 1.42, 1.4, 1.405]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _BestCheckpointPassedWatch(self)


class _BestCheckpointPassedWatch(Watch):
    rule: BestCheckpointPassed

    def close(self, curves: Curves) -> Sequence[Finding]:
        track, rule = curves[EVAL_LOSS], self.rule
        best, last = track.best, track.last
        if track.n < 2 or best <= 0 or not math.isfinite(last) or track.best_step is None:  # noqa: PLR2004 - best and last
            return NOTHING
        worse = last / best - 1
        noise = track.noise
        if worse < rule.worse or (noise is not None and math.log(last / best) < rule.height * noise):
            return NOTHING
        step = track.last_step
        text = f"the last {EVAL_LOSS}, {last:.4g} at step {step}, is worse than {best:.4g} at step {track.best_step}"
        found = [Evidence(f"last {EVAL_LOSS} above the best", worse, ">=", rule.worse, "share", step)]
        if noise:
            z = math.log(last / best) / noise
            found.append(Evidence(f"last {EVAL_LOSS} above the best", z, ">=", rule.height, "sd", step))
        advice = f"Use the checkpoint of step {track.best_step}; set load_best_model_at_end=True for the next run."
        cure = Prescription((), advice, f"{EVAL_LOSS} was lowest there", ("do not judge the last checkpoint",))
        return (self.finding(EVAL_LOSS, track.best_step, step, text, *found, prescription=cure),)
