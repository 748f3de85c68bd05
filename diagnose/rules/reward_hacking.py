"""CD607 reward-hacking: the total reward rises while one of its components is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves, Track
from diagnose.levels import LEVEL_POINTS, Heights, mean, spread
from diagnose.model import Evidence, Finding, Kind, Row, Severity
from diagnose.names import REWARD, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

_COMPONENT = "train/rewards/"
_FORMAT = [0.2 + min(0.02 * i, 0.8) for i in range(60)]
_LOST = [0.32 - min(0.006 * i, 0.28) + 0.01 * (-1) ** i for i in range(60)]
_KEPT = [0.16 + 0.02 * (-1) ** i for i in range(60)]


def _sum(*parts: Sequence[float]) -> list[float]:
    return [sum(values) for values in zip(*parts, strict=True)]


@dataclass(frozen=True)
class RewardHacking(Rule):
    """The total reward rises while a component that the policy had earned falls away.

    What it sees:
        Several reward functions, logged each by its name. One of them has lost at least half of its level by far more
        than its noise, and since its best the total has risen as clearly: the policy pays with that component for others.

    Why it matters:
        Cheap components (format, length, a keyword) are often maximised at the cost of the one that is meant, such
        as being right. The total looks well all the while.

    What to do:
        Read completions of high reward. Give the lost component more weight, or pay the cheap one only where the
        answer is right.

    When it is wrong:
        It cannot know which component is meant: a penalty that grows with longer, better answers is traded rightly. A
        policy that hacks a single reward function looks healthy in every curve. Shorter completions are no evidence:
        healthy runs shorten them as well.

    References:
        Skalse et al. 2022, "Defining and characterizing reward hacking". Amodei et al. 2016, "Concrete problems in AI safety".
    """

    code: ClassVar[str] = "CD607"
    name: ClassVar[str] = "reward-hacking"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = (REWARD, _COMPONENT + "*")
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.RL})

    lost: float = threshold(0.5, unit="share of its best level", low=0.1, high=10.0, source="half: less is a trade-off")
    height: float = threshold(5.0, unit="standard errors", low=1.0, high=50.0, source="as for reward-collapse")
    rise: float = threshold(4.0, unit="standard errors", low=0.0, high=50.0, source="a rise that nobody doubts")
    part: float = threshold(
        0.25, unit="share of the total's rise", low=0.0, high=10.0, source="a smaller loss is made good four times"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example(
            "format for accuracy",
            {
                TRAIN_LOSS: [0.001] * 60,
                REWARD: _sum(_FORMAT, _LOST),
                "train/rewards/format_reward/mean": _FORMAT,
                "train/rewards/accuracy_reward/mean": _LOST,
            },
        ),
        Example(
            "names of an older version",
            {
                TRAIN_LOSS: [0.001] * 60,
                REWARD: _sum(_FORMAT, _LOST),
                "train/rewards/xmlcount_reward_func": _FORMAT,
                "train/rewards/correctness_reward_func": _LOST,
            },
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example(
            "both are kept",
            {
                TRAIN_LOSS: [0.001] * 60,
                REWARD: _sum(_FORMAT, _KEPT),
                "train/rewards/format_reward/mean": _FORMAT,
                "train/rewards/accuracy_reward/mean": _KEPT,
            },
        ),
        Example(
            "all falls: another rule's story",
            {
                TRAIN_LOSS: [0.001] * 60,
                REWARD: _sum(_LOST, _LOST),
                "train/rewards/format_reward/mean": _LOST,
                "train/rewards/accuracy_reward/mean": _LOST,
            },
        ),
        Example(
            "the spread falls, not the reward",
            {
                TRAIN_LOSS: [0.001] * 60,
                REWARD: _FORMAT,
                "train/rewards/format_reward/mean": _FORMAT,
                "train/rewards/format_reward/std": _LOST,
            },
        ),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _RewardHackingWatch(self)


class _RewardHackingWatch(Watch):
    rule: RewardHacking

    def __init__(self, rule: RewardHacking) -> None:
        super().__init__(rule)
        self.heights: dict[str, Heights] = {}
        #: Mean of the total where a component was best.
        self.totals: dict[str, float] = {}
        self.open: dict[str, Finding] = {}

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        total = curves.get(REWARD)
        if total is None or REWARD not in row.values or total.n < LEVEL_POINTS:
            return NOTHING
        said: list[Finding] = []
        for name, value in row.values.items():
            if name.startswith(_COMPONENT) and not name.endswith("/std") and math.isfinite(value):
                said += self._see_component(curves[name], total, curves)
        return said

    def _see_component(self, track: Track, total: Track, curves: Curves) -> Sequence[Finding]:
        rule, heights = self.rule, self.heights.setdefault(track.name, Heights())
        if heights.add(track):
            self.totals[track.name] = mean(total.recent(LEVEL_POINTS))
        fall, then, now = heights.fall(track), self.totals.get(track.name), mean(total.recent(LEVEL_POINTS))
        if fall is None or then is None:
            return NOTHING
        error = spread(list(total.values)) * math.sqrt(2 / LEVEL_POINTS)
        rise = now - then
        sigmas = rise / error if error else math.copysign(math.inf, rise)
        # Half of its best level, above 0 or above the start, whichever is more: a share of a level near 0 means nothing.
        level = max(heights.best, heights.best - heights.start, heights.noise)
        share = fall.drop / level if level > 0 else 0.0
        if not (share >= rule.lost and fall.sigmas >= rule.height and sigmas >= rule.rise and fall.drop >= rule.part * rise):
            return self._maybe_resolve(track, share)
        step, told = track.last_step, self.open.get(track.name)
        finding = self.finding(
            track.name,
            step if told is None else told.first_step,
            step,
            f"{track.name} fell from {heights.best:.3g} (about step {heights.best_step}) to {fall.now:.3g} while {REWARD} rose "
            f"from {then:.3g} to {now:.3g}",
            Evidence(f"{track.name} lost", share, ">=", rule.lost, "share", step),
            Evidence(f"{track.name} below its best level", fall.sigmas, ">=", rule.height, "standard errors", step),
            Evidence(f"{REWARD} risen since then", sigmas, ">=", rule.rise, "standard errors", step),
            prescription=prescribe.from_step(
                prescribe.other_cause(
                    f"Read completions of high reward; give {track.name.removeprefix(_COMPONENT).removesuffix('/mean')} more "
                    "weight, or pay the others only where it is earned.",
                    "the total rises at the cost of one of its parts",
                ),
                heights.best_step,
            ),
        )
        self.open[track.name] = finding
        return (finding,)

    def _maybe_resolve(self, track: Track, share: float) -> Sequence[Finding]:
        past = self.open.get(track.name)
        if past is None or share >= 0.5 * self.rule.lost:
            return NOTHING
        del self.open[track.name]
        return self.resolved(
            past, track.last_step, f"{track.name} had fallen but is near its best again at step {track.last_step}"
        )
