"""CD405 still-learning: the run ended while the loss was still falling clearly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves, Track
from diagnose.evaluations import judged
from diagnose.model import Evidence, Finding, Prescription, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.prescribe import KEEP_THE_REST
from diagnose.rules.base import NOTHING, STORIES, Example, Rule, Watch, threshold
from diagnose.stats import trend

_STEADY = [3.0 * 0.93**i for i in range(18)]


@dataclass(frozen=True)
class StillLearning(Rule):
    """The run ended while the loss was still falling clearly.

    What it sees:
        The last third of the run still falls in order, and brings a fair part of all that the run has gained. The
        evaluation loss is taken where there are enough evaluations, else the training loss.

    Why it matters:
        More steps would have given a better model, and cheaply: the run was not at its end.

    What to do:
        Train longer with the same settings. If epochs are many already, raise the learning rate by a factor of 3 instead.

    When it is wrong:
        Without an evaluation loss, a training loss that falls over many epochs may only memorize. A schedule that decays to 0
        makes the last part steeper; resuming without its decay does not keep that pace.

    References:
        Kendall 1975 for the order. Readers of curves agree only moderately on this one (Cohen's kappa .71), hence the
        severity.
    """

    code: ClassVar[str] = "CD405"
    name: ClassVar[str] = "still-learning"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[tuple[str, ...]] = (f"{TRAIN_LOSS}|{EVAL_LOSS}",)
    hushed_by: ClassVar[tuple[str, ...]] = (*STORIES, "slow-loss")

    points: int = threshold(12, unit="train points", low=8, high=10_000, source="four in the last third")
    evals: int = threshold(5, unit="evaluations", low=4, high=1000, source="as points; evaluations have less noise")
    fall: float = threshold(0.03, unit="share of the loss", low=0.0, high=1.0, source="the least fall that readers speak of")
    share: float = threshold(0.16, unit="share of all gained", low=0.0, high=1.0, source="half of a steady fall's third")
    order: float = threshold(0.5, unit="Kendall's tau", low=0.0, high=1.0, source="three pairs of four in order")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("a steady fall", {TRAIN_LOSS: _STEADY}),
        Example("in the evaluation", {TRAIN_LOSS: _STEADY, EVAL_LOSS: [3.1 * 0.95**i for i in range(18)]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("levelled off", {TRAIN_LOSS: [1.0 + 2.0 * 0.6**i for i in range(18)]}),
        Example("evaluation levelled off", {TRAIN_LOSS: _STEADY, EVAL_LOSS: [1.0 + 2.0 * 0.6**i for i in range(18)]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _StillLearningWatch(self)


class _StillLearningWatch(Watch):
    rule: StillLearning

    def close(self, curves: Curves) -> Sequence[Finding]:
        track = judged(curves, self.rule.points, self.rule.evals)
        return NOTHING if track is None else self._see_end(track)

    def _see_end(self, track: Track) -> Sequence[Finding]:
        rule, logs, steps = self.rule, track.blocks.values, track.blocks.steps
        first = min(len(logs) * 2 // 3, len(logs) - 4)
        gained = track.fallen
        test = trend(steps[first:], logs[first:])
        if test is None or gained <= 0:
            return NOTHING
        fall = -test.slope * (steps[-1] - steps[first])
        if fall < rule.fall or fall < rule.share * gained or -test.tau < rule.order:
            return NOTHING
        begun, last = int(steps[first]), track.last_step
        text = f"{track.name} was still falling when the log ended: by {100 * -math.expm1(-fall):.0f} % since step {begun}"
        return (
            self.finding(
                track.name,
                begun,
                last,
                text,
                Evidence(f"{track.name} fallen since step {begun}", fall, ">=", rule.fall, "share", last),
                Evidence("of all that the run gained", fall / gained, ">=", rule.share, "share", last),
                Evidence("order of the last third (Kendall's tau)", test.tau, "<=", -rule.order, "", last),
                prescription=Prescription(
                    (), "Train longer with the same settings.", "the loss was still falling at the end", (KEEP_THE_REST,)
                ),
            ),
        )

    def skip(self, curves: Curves) -> str | None:
        return curves.no_likelihood
