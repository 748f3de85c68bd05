"""CD302 slow-loss: learns, but so slowly that the run ends far from its floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.evaluations import judged
from diagnose.model import Evidence, Finding, Kind, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import NOTHING, STORIES, Example, Rule, Watch, threshold
from diagnose.stats import trend

_SLOW = [6.08 - 0.002 * i for i in range(40)]


@dataclass(frozen=True)
class SlowLoss(Rule):
    """The loss falls, but so little over the whole run that it ends far from where it could be.

    What it sees:
        A fall that is certain, goes on in the later two thirds at a pace like the average, and adds up to a few percent only.
        A run that goes on falling at one pace has not come near any floor.

    Why it matters:
        The run is paid for and hardly changes the model. Most often the learning rate is too low.

    What to do:
        Raise the learning rate by a factor of 3. At the top of the method's range train longer instead.

    When it is wrong:
        A run that continues a long training on the same data is expected to look like this. A base model that already
        does the task well has little to gain.

    References:
        Sen 1968 for the slope, Mann 1945 for the test. Below the best rate the loss is a function of the summed
        learning rate, so a straight course means that more of it would help. Limits: labelled curves behind `fixtures/public`.
    """

    code: ClassVar[str] = "CD302"
    name: ClassVar[str] = "slow-loss"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    also: ClassVar[tuple[str, ...]] = (EVAL_LOSS,)
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.SUPERVISED})
    hushed_by: ClassVar[tuple[str, ...]] = STORIES

    points: int = threshold(20, unit="train points", low=8, high=10_000, source="fewer cannot tell slow from flat")
    evals: int = threshold(8, unit="evaluations", low=5, high=1000, source="as points; evaluations have less noise")
    moved: float = threshold(
        0.06, unit="share of the start", low=0.0, high=1.0, source="labelled curves: slow ones stay within 5 %"
    )
    chance: float = threshold(0.01, unit="probability", low=0.0, high=0.5, source="Mann-Kendall, two-sided")
    pace: float = threshold(0.4, unit="share of the fall", low=0.0, high=1.0, source="two thirds would be a straight course")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("one percent, in a straight line", {TRAIN_LOSS: _SLOW}),
        Example("with evaluations", {TRAIN_LOSS: _SLOW, EVAL_LOSS: [6.06 - 0.002 * i for i in range(40)]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("a real fall", {TRAIN_LOSS: [3.0 * 0.97**i for i in range(40)]}),
        Example("falls early, then level", {TRAIN_LOSS: [1.05, 1.02, *[1.0 + 0.001 * (i % 3) for i in range(38)]]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _SlowLossWatch(self)


class _SlowLossWatch(Watch):
    rule: SlowLoss

    def close(self, curves: Curves) -> Sequence[Finding]:
        track, train = judged(curves, self.rule.points, self.rule.evals), curves[TRAIN_LOSS]
        if track is None or train.goes_negative or train.fallen > self.rule.moved:
            return NOTHING
        rule, logs, steps = self.rule, track.blocks.values, track.blocks.steps
        fallen, third = track.fallen, len(logs) // 3
        test = trend(steps[third:], logs[third:])
        if test is None or not 0 < fallen <= rule.moved or test.tau >= 0 or test.p >= rule.chance:
            return NOTHING
        later = -test.slope * (steps[-1] - steps[third])
        if later < rule.pace * fallen:
            return NOTHING
        first, last = track.first_step, track.last_step
        text = f"{track.name} fell by only {100 * fallen:.1f} % in {last - first} steps and still falls at the same pace"
        return (
            self.finding(
                track.name,
                first,
                last,
                text,
                Evidence(f"{track.name} fallen from its start", fallen, "<=", rule.moved, "share", last),
                Evidence("chance of its trend", test.p, "<", rule.chance, "", last),
                Evidence("of its fall, in the later two thirds", later / fallen, ">=", rule.pace, "share", last),
                prescription=prescribe.raise_rate(curves, f"{track.name} falls steadily but hardly moves"),
            ),
        )

    def skip(self, curves: Curves) -> str | None:
        return curves.no_likelihood
