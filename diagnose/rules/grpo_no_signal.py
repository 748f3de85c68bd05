"""CD604 grpo-no-signal: the completions of a group all get the same reward, so there is nothing to learn from."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.levels import Heights, mean
from diagnose.model import Evidence, Finding, Kind, Row, Severity
from diagnose.names import GRAD_NORM, REWARD, REWARD_STD, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

SHARE = "train/frac_reward_zero_std"
_DEAD = [1.0] * 9 + [0.75]


@dataclass(frozen=True)
class GrpoNoSignal(Rule):
    """Nearly all groups of completions have one reward each, so their advantages are 0.

    What it sees:
        `frac_reward_zero_std` near 1, or, where that is not logged, `reward_std` exactly 0, at nearly all recent logs. It is
        an error, and a reason to stop, once that has lasted without any rise of the reward. Where the reward has
        risen, the prompts are solved: that is told, not warned of. The loss is not looked at: it is 0 in healthy runs.

    Why it matters:
        The advantage of a completion is its reward less the mean of its group. Where all are alike it is 0, and so is
        the gradient, but for the KL term that pulls the policy back: the steps cost as much as others and teach nothing.

    What to do:
        Score some completions of one prompt by hand. Then more completions a prompt, a temperature near 1, a reward with
        partial credit, or prompts that the model solves now and then, neither always nor never.

    When it is wrong:
        Hard tasks start with few groups that differ, and may take off later. With two completions a prompt most groups
        are alike by chance. A spread that is logged over the whole batch says nothing of the groups.

    References:
        Shao et al. 2024, "DeepSeekMath": the group-relative advantage. Yu et al. 2025, "DAPO": dynamic sampling drops such
        groups.
    """

    code: ClassVar[str] = "CD604"
    name: ClassVar[str] = "grpo-no-signal"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (f"{SHARE}|{REWARD_STD}",)
    also: ClassVar[tuple[str, ...]] = (REWARD,)
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.RL})

    dead: float = threshold(
        0.85, unit="share of the groups", low=0.1, high=1.0, source="labelled runs called without signal: 0.87 and more"
    )
    alive: float = threshold(
        0.6, unit="share of the groups", low=0.0, high=1.0, source="runs with two thirds were called noisy but alive"
    )
    points: int = threshold(20, unit="points", low=4, high=1000, source="readers would stop such a run from step 20 or 40 on")
    steps: int = threshold(20, unit="steps", low=1, high=10**6, source="the same readers")
    certain: float = threshold(
        0.9, unit="share of the groups", low=0.1, high=1.0, source="the labelled run that both readers would stop has 0.96"
    )
    certain_steps: int = threshold(40, unit="steps", low=1, high=10**6, source="where both readers would stop it")
    risen: float = threshold(
        3.0, unit="standard errors", low=0.0, high=50.0, source="three sigma between two levels of the reward"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example(
            "most groups alike",
            {TRAIN_LOSS: [1e-5] * 50, REWARD: [0.0] * 9 + [0.06] + [0.0] * 40, SHARE: _DEAD * 5, GRAD_NORM: [1e-3] * 50},
            step=1,
        ),
        Example(
            "two completions a prompt, always the same reward",
            {TRAIN_LOSS: [0.0] * 30, REWARD: [2.0] * 24 + [1.0] + [2.0] * 5, REWARD_STD: [0.0] * 24 + [1.4] + [0.0] * 5},
            step=1,
        ),
        Example(
            "solved: told, not warned of",
            {TRAIN_LOSS: [0.001] * 60, REWARD: [0.1] * 20 + [0.5] * 10 + [1.0] * 30, SHARE: [0.1] * 30 + [0.95] * 30},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("groups differ", {TRAIN_LOSS: [0.0] * 40, REWARD: [0.4, 0.5] * 20, REWARD_STD: [0.3, 0.2] * 20}),
        Example("every other group", {TRAIN_LOSS: [0.0] * 40, REWARD: [0.4, 0.5] * 20, SHARE: [0.5, 0.6] * 20}),
        Example("ten logs only", {TRAIN_LOSS: [0.0] * 10, REWARD: [0.0] * 10, SHARE: [1.0] * 10}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _GrpoNoSignalWatch(self)


class _GrpoNoSignalWatch(Watch):
    rule: GrpoNoSignal

    def __init__(self, rule: GrpoNoSignal) -> None:
        super().__init__(rule)
        self.seen: deque[tuple[int, float]] = deque(maxlen=2 * rule.points)
        self.heights = Heights()
        self.open: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        rule, reward = self.rule, row.values.get(REWARD)
        if reward is not None and math.isfinite(reward):
            self.heights.add(curves[REWARD])
        metric = SHARE if SHARE in curves.tracks else REWARD_STD
        value = row.values.get(metric)
        if value is None or not math.isfinite(value):
            return NOTHING
        self.seen.append((row.step, value if metric == SHARE else float(value == 0)))
        recent = list(self.seen)[-rule.points :]
        dead = mean([share for _, share in recent])
        if self.open is not None and dead < rule.alive:
            past, self.open = self.open, None
            return self.resolved(
                past, row.step, f"groups had one reward each, but {100 * (1 - dead):.0f} % of them differ again"
            )
        if len(recent) < rule.points or row.step - recent[0][0] + 1 < rule.steps or dead < rule.dead:
            return NOTHING
        return self._tell(metric, dead, recent[0][0], row.step, curves)

    def _tell(self, metric: str, dead: float, first: int, step: int, curves: Curves) -> Sequence[Finding]:
        rule, told, track = self.rule, self.open, curves.get(REWARD)
        what = "of the groups" if metric == SHARE else "of the logs"
        said = f"{100 * dead:.0f} % {what} of the last {rule.points} points have completions of one and the same reward"
        found = Evidence("groups of one reward", dead, ">=", rule.dead, "share", step)
        rise = 0.0 if track is None else self.heights.risen(track)
        severity = Severity.WARNING
        if rise >= rule.risen and track is not None:
            severity = Severity.INFO
            said += f", and the reward has risen from {self.heights.start:.3g} to {track.level:.3g}: the prompts are solved"
        elif track is not None and track.n:
            said += f", and the reward stays at {mean(track.recent(rule.points)):.3g}"
        long, span = mean([share for _, share in self.seen]), step - self.seen[0][0] + 1
        if (
            severity is Severity.WARNING
            and len(self.seen) == self.seen.maxlen
            and span >= rule.certain_steps
            and long >= rule.certain
        ):
            severity = Severity.ERROR
        if told is not None:
            severity = max(severity, told.severity, key=lambda s: s.rank)
        cure = prescribe.other_cause(
            "Score a few completions of one prompt by hand; then sample more of them a prompt at a temperature near 1, give "
            "partial credit, or take prompts that the model solves now and then.",
            "where all completions of a prompt get one reward the advantage is 0, and so is the gradient",
        )
        first = first if told is None else told.first_step
        self.open = self.finding(metric, first, step, said, found, severity=severity, prescription=cure)
        return (self.open,)
