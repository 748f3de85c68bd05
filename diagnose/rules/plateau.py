"""CD404 plateau: converged, nothing gained for a long part of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.evaluations import judged
from diagnose.model import Evidence, Finding, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import NOTHING, STORIES, Example, Rule, Watch, threshold
from diagnose.stats import Trend, median, trend

_LEVEL = [1.02, 0.99, 1.01, 1.0, 0.98, 1.01, 1.0, 1.02, 0.99, 1.0]


@dataclass(frozen=True)
class Plateau(Rule):
    """The loss fell and then gained nothing for a long part of the run.

    What it sees:
        After a real fall, the later two thirds of the run show no trend that chance would not give, or one too small to
        matter. The evaluation loss is taken where there are enough evaluations, else the training loss.

    Why it matters:
        Those steps were paid for and brought nothing. It is a natural end as often as a rate that is too low or too high to
        go on, so it never stops a run.

    What to do:
        End the next run earlier, or let the schedule decay to 0 by then: annealing often brings a last gain.

    When it is wrong:
        Small batches hide a slow gain in their noise. A task metric may still improve.

    References:
        Mann 1945, Kendall 1975 and Sen 1968 for the trend. Readers of curves agree only moderately on this one (Cohen's kappa
        .81), hence the severity.
    """

    code: ClassVar[str] = "CD404"
    name: ClassVar[str] = "plateau"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[tuple[str, ...]] = (f"{TRAIN_LOSS}|{EVAL_LOSS}",)
    hushed_by: ClassVar[tuple[str, ...]] = STORIES

    points: int = threshold(20, unit="train points", low=8, high=10_000, source="fewer cannot tell level from slow")
    evals: int = threshold(8, unit="evaluations", low=5, high=1000, source="as points; evaluations have less noise")
    fallen: float = threshold(0.1, unit="share of the start", low=0.0, high=1.0, source="less is a flat loss, not a plateau")
    gain: float = threshold(0.02, unit="share of the loss", low=0.0, high=1.0, source="the least gain that readers speak of")
    unsure: float = threshold(
        0.05, unit="share of the loss", low=0.0, high=1.0, source="a gain, or an error of it, this large leaves it open"
    )
    chance: float = threshold(0.1, unit="probability", low=0.0, high=1.0, source="Mann-Kendall, two-sided")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("a fall, then a long level", {TRAIN_LOSS: [3.0, 2.2, 1.6, 1.2, 1.05, *_LEVEL, *_LEVEL]}),
        Example("in the evaluation", {EVAL_LOSS: [2.0, 1.2, 1.001, 1.0, 1.002, 0.999, 1.001, 1.0, 1.0, 1.001, 0.999]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("still falling", {TRAIN_LOSS: [3.0 * 0.95**i for i in range(30)]}),
        Example("flat from the start", {TRAIN_LOSS: [*_LEVEL, *_LEVEL, *_LEVEL]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _PlateauWatch(self)


class _PlateauWatch(Watch):
    rule: Plateau

    def close(self, curves: Curves) -> Sequence[Finding]:
        track = judged(curves, self.rule.points, self.rule.evals)
        if track is None:
            return NOTHING
        rule, logs, steps = self.rule, track.blocks.values, track.blocks.steps
        fallen = track.fallen
        third = len(logs) // 3
        test = trend(steps[third:], logs[third:]) or Trend(0.0, 0.0, 1.0)
        gained = -test.slope * (steps[-1] - steps[third])
        is_level = (test.p >= rule.chance and max(gained, track.fall_error) <= rule.unsure) or gained <= rule.gain
        if fallen < rule.fallen or not is_level:
            return NOTHING
        first, last = int(steps[third]), track.last_step
        text = f"{track.name} has gained nothing since about step {first}: {math.exp(median(logs[third:])):.4g} ever since"
        reason = (
            Evidence("chance of its trend since then", test.p, ">=", rule.chance, "", last)
            if test.p >= rule.chance
            else Evidence(f"{track.name} gained since then", gained, "<=", rule.gain, "share", last)
        )
        fall = Evidence(f"{track.name} fallen from its start", fallen, ">=", rule.fallen, "share", last)
        return (self.finding(track.name, first, last, text, fall, reason),)

    def skip(self, curves: Curves) -> str | None:
        return curves.no_likelihood
