"""CD606 reward-collapse: the reward falls far from its best level and stays there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.levels import LEVEL_POINTS, Fall, Heights
from diagnose.model import Evidence, Finding, Kind, Row, Severity
from diagnose.names import REWARD, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

_RISES = [0.2 + 0.02 * i + 0.03 * (-1) ** i for i in range(40)]


@dataclass(frozen=True)
class RewardCollapse(Rule):
    """The mean reward has lost most of what it had gained, by far more than its noise.

    What it sees:
        The mean of the recent rewards against the best such mean so far: a fall by several standard errors that takes at
        least half of the gain, or of the noise of one batch where the run had gained less than that. When four fifths
        are gone and do not come back it is an error. The loss is not looked at: in reinforcement learning it says nothing.

    Why it matters:
        The policy that had learned something is gone, and more training from here seldom brings it back.

    What to do:
        Go back to a checkpoint near the best reward. A third of the learning rate, or a stronger pull to the reference.

    When it is wrong:
        A curriculum that turns to harder prompts, or a reward that is changed on the way, lowers the reward by design.
        Slow waves of difficulty in the data look like falls and rises.

    References:
        Gao et al. 2022, "Scaling laws for reward model overoptimization". Page 1954, Biometrika 41, for holding a level against
        the best one so far.
    """

    code: ClassVar[str] = "CD606"
    name: ClassVar[str] = "reward-collapse"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (REWARD,)
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.RL})
    vital: ClassVar[bool] = True

    lost: float = threshold(0.5, unit="share of the gain", low=0.1, high=10.0, source="half, as for a loss that climbs")
    height: float = threshold(
        5.0, unit="standard errors", low=1.0, high=50.0, source="five sigma, since it is tested at every log"
    )
    certain: float = threshold(0.8, unit="share of the gain", low=0.1, high=10.0, source="as good as all of it")
    patience: int = threshold(32, unit="points", low=1, high=1000, source="twice the points of a level")
    back: float = threshold(0.25, unit="share of the gain", low=0.0, high=10.0, source="half of what counts as lost")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("rises, then breaks down", {TRAIN_LOSS: [0.001] * 100, REWARD: _RISES + [0.1, 0.05] * 30}),
        Example(
            "below 0 from a good start",
            {TRAIN_LOSS: [0.0] * 70, REWARD: [0.5 + 0.1 * (-1) ** i for i in range(30)] + [-0.5] * 40},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("rises and stays", {TRAIN_LOSS: [0.001] * 80, REWARD: _RISES + [1.0, 0.95] * 20}),
        Example("all noise", {TRAIN_LOSS: [0.0] * 90, REWARD: [0.0, 2.5, 2.5, 0.0, 2.5, 0.0, 0.0, 0.0, 2.5] * 10}),
        Example("one bad batch", {TRAIN_LOSS: [0.001] * 80, REWARD: [*_RISES, -3.0, *[1.0, 0.95] * 19, 1.0]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _RewardCollapseWatch(self)


class _RewardCollapseWatch(Watch):
    rule: RewardCollapse

    def __init__(self, rule: RewardCollapse) -> None:
        super().__init__(rule)
        self.heights = Heights()
        self.n_down = 0
        self.open: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        rule, track, value = self.rule, curves[REWARD], row.values.get(REWARD)
        if value is None or not math.isfinite(value):
            return NOTHING
        self.heights.add(track)
        fall = self.heights.fall(track)
        if fall is None:
            return NOTHING
        self.n_down = self.n_down + 1 if fall.share >= rule.certain else 0
        if self.open is not None and fall.share < rule.back:
            past, self.open = self.open, None
            return self.resolved(past, row.step, f"{REWARD} had fallen but is back at {fall.now:.3g} at step {row.step}")
        if fall.share < rule.lost or fall.sigmas < rule.height:
            return NOTHING
        return self._tell(fall, row.step, curves)

    def _tell(self, fall: Fall, step: int, curves: Curves) -> Sequence[Finding]:
        rule, told, best = self.rule, self.open, self.heights
        text = f"{REWARD} fell from {best.best:.3g} (about step {best.best_step}) to {fall.now:.3g}"
        text += ", below where it started" if fall.now < best.start else ""
        severity = Severity.ERROR if self.n_down >= rule.patience else Severity.WARNING
        if told is not None:
            severity = max(severity, told.severity, key=lambda s: s.rank)
        cure = prescribe.lower_rate(
            curves, f"the reward was best about step {best.best_step} and has lost most of its gain since"
        )
        self.open = self.finding(
            REWARD,
            step if told is None else told.first_step,
            step,
            text,
            Evidence("reward lost of what was gained", fall.share, ">=", rule.lost, "share", step),
            Evidence("reward below its best level", fall.sigmas, ">=", rule.height, "standard errors", step),
            severity=severity,
            prescription=prescribe.from_step(cure, best.best_step),
        )
        return (self.open,)

    def skip(self, curves: Curves) -> str | None:
        n = curves[REWARD].n
        return f"{n} finite points of {REWARD} are too few for two levels" if n < 2 * LEVEL_POINTS else None
