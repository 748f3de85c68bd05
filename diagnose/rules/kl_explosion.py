"""CD605 kl-explosion: the distance to the reference model leaves its band by orders of magnitude."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import LEVEL, Curves
from diagnose.levels import Fall, Heights
from diagnose.model import Evidence, Finding, Kind, Row, Severity
from diagnose.names import KL, REWARD, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import quantile

_CALM = [0.05 + 0.01 * (i % 3) for i in range(40)]


@dataclass(frozen=True)
class KlExplosion(Rule):
    """The KL divergence from the reference jumps to many times all that it was before, and stays there.

    What it sees:
        A recent KL that is a multiple of the highest values of the points before, and large in itself: from near 0 every
        run multiplies its KL at first. With a reward that has collapsed as well it is an error.

    Why it matters:
        The policy has left the region in which the reward model or the language of the reference means anything. The
        reward usually follows it down, and the checkpoints after that are lost.

    What to do:
        Go back to the checkpoint before the jump. A third of the learning rate; if it comes again, a larger beta.

    When it is wrong:
        Single completions give single huge values of the estimate: they are not counted. A KL that grows slowly without
        end is not reported, nor one in a run without a KL term, which logs none.

    References:
        Schulman 2020, "Approximating KL divergence": why the estimate has such outliers. Gao et al. 2022, "Scaling laws for
        reward model overoptimization": reward against KL.
    """

    code: ClassVar[str] = "CD605"
    name: ClassVar[str] = "kl-explosion"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (KL,)
    also: ClassVar[tuple[str, ...]] = (REWARD,)
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.RL})

    ratio: float = threshold(
        10.0, unit="ratio", low=2.0, high=1e6, source="an order of magnitude: healthy peaks in labelled runs reach 5"
    )
    large: float = threshold(1.0, unit="nats", low=0.0, high=1e6, source="healthy labelled runs stay below 0.5 a token")
    older: int = threshold(24, unit="points", low=4, high=56, source="a band needs twice the points of a level")
    back: float = threshold(3.0, unit="ratio", low=1.0, high=1e6, source="half of the way back, in logarithms")
    lost: float = threshold(0.5, unit="share of the reward gained", low=0.0, high=10.0, source="as for reward-collapse")
    height: float = threshold(5.0, unit="standard errors", low=0.0, high=50.0, source="as for reward-collapse")

    firing: ClassVar[tuple[Example, ...]] = (
        Example(
            "with the reward",
            {
                TRAIN_LOSS: [0.001] * 70,
                REWARD: [0.2 + 0.02 * min(i, 40) for i in range(45)] + [0.05] * 25,
                KL: _CALM + [0.2, 0.8, 3.0] + [20.0] * 27,
            },
        ),
        Example("the reward holds: a warning", {TRAIN_LOSS: [0.001] * 60, REWARD: [0.5] * 60, KL: _CALM + [3.0] * 20}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("grows from 0", {TRAIN_LOSS: [0.0] * 60, REWARD: [0.5] * 60, KL: [0.3 * (1 - 0.95**i) for i in range(60)]}),
        Example("one huge estimate", {TRAIN_LOSS: [0.0] * 60, REWARD: [0.5] * 60, KL: [*_CALM, 900.0, *_CALM[:19]]}),
        Example("thirtyfold, but small", {TRAIN_LOSS: [0.0] * 60, REWARD: [0.5] * 60, KL: [0.001] * 40 + [0.03] * 20}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _KlExplosionWatch(self)


class _KlExplosionWatch(Watch):
    rule: KlExplosion

    def __init__(self, rule: KlExplosion) -> None:
        super().__init__(rule)
        self.heights = Heights()
        self.band = math.nan
        self.open: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        rule, reward, kl = self.rule, row.values.get(REWARD), row.values.get(KL)
        if reward is not None and math.isfinite(reward):
            self.heights.add(curves[REWARD])
        if kl is None or not math.isfinite(kl):
            return NOTHING
        track = curves[KL]
        if self.open is None:
            older = list(track.values)[: -2 * LEVEL]
            if len(older) < rule.older:
                return NOTHING
            self.band = quantile(older, 0.9)
        if not self.band > 0:
            return NOTHING
        ratio = track.level / self.band
        if self.open is not None and ratio < rule.back:
            past, self.open = self.open, None
            return self.resolved(past, row.step, f"{KL} had jumped but is back at {track.level:.3g} at step {row.step}")
        if not (rule.ratio <= ratio < math.inf and track.level >= rule.large):
            return NOTHING
        return self._tell(ratio, track.level, row.step, curves)

    def _tell(self, ratio: float, level: float, step: int, curves: Curves) -> Sequence[Finding]:
        rule, told, reward = self.rule, self.open, curves.get(REWARD)
        text = f"{KL} jumped to {level:.3g}, {ratio:.3g} times the upper end of its band before"
        found = [
            Evidence(f"{KL} over its band", ratio, ">=", rule.ratio, "ratio", step),
            Evidence(KL, level, ">=", rule.large, "nats", step),
        ]
        fall: Fall | None = None if reward is None else self.heights.fall(reward)
        severity, best = Severity.WARNING, None
        if fall is not None and fall.share >= rule.lost and fall.sigmas >= rule.height:
            severity, best = Severity.ERROR, self.heights.best_step
            text += f", and the reward fell from {self.heights.best:.3g} (about step {best}) to {fall.now:.3g}"
            found.append(Evidence("reward lost of what was gained", fall.share, ">=", rule.lost, "share", step))
        if told is not None:
            severity = max(severity, told.severity, key=lambda s: s.rank)
        cure = prescribe.lower_rate(curves, "the policy left the neighbourhood of its reference in a few steps")
        first = step if told is None else told.first_step
        self.open = self.finding(KL, first, step, text, *found, severity=severity, prescription=prescribe.from_step(cure, best))
        return (self.open,)
