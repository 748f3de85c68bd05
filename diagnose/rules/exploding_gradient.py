"""CD204 exploding-gradient: the gradient norm leaves its band for good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves, Track
from diagnose.model import Evidence, Finding, Row, Severity
from diagnose.names import GRAD_NORM, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median, noise_scale, quantile

_BAND = [1.2, 1.0, 1.1, 0.9, 1.0, 0.95, 1.05, 0.9, 1.0, 1.1, 0.95, 1.0]
_LOSS = [2.0, 1.9, 1.8, 1.75, 1.7, 1.66, 1.63, 1.6, 1.58, 1.56, 1.55, 1.54]


@dataclass(frozen=True)
class ExplodingGradient(Rule):
    """The gradient norm left its band by orders of magnitude and stays out, while the loss no longer improves.

    What it sees:
        Three quarters of the recent gradient norms stand far above the band that the run had before, by a large factor and by
        many widths of its noise (in logarithms), and the training loss is not below where it was when the band was left.

    Why it matters:
        Clipping keeps the step length but not its direction: such steps are noise. Divergence or NaN often follow.

    What to do:
        Lower the learning rate by a factor of 3; see that `max_grad_norm` is 1.0 and that warm-up is 3 to 10 % of the steps.

    When it is wrong:
        The logged norm belongs to a single step. Norms rise in healthy runs too, as the loss becomes sharp; so the loss has
        to stand still, and the finding is a warning that never stops a run by itself.

    References:
        Pascanu, Mikolov & Bengio 2013, arXiv 1211.5063. Limits are far outside what healthy recorded curves show.
    """

    code: ClassVar[str] = "CD204"
    name: ClassVar[str] = "exploding-gradient"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = (GRAD_NORM,)
    also: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    meant_false_alarms: ClassVar[str] = "3e-2 a run: none of 106 healthy labelled runs, upper bound at 95 %"

    ratio: float = threshold(10.0, unit="ratio", low=1.5, high=1e6, source="an order of magnitude; healthy drifts stay below 5")
    height: float = threshold(6.0, unit="sd", low=2.0, high=100.0, source="as for loss-spike")
    points: int = threshold(8, unit="points", low=4, high=32, source="six of eight have to be out of the band")

    firing: ClassVar[tuple[Example, ...]] = (
        Example(
            "a hundredfold while the loss stands",
            {GRAD_NORM: [*_BAND, *[100.0 + 5 * i for i in range(8)]], TRAIN_LOSS: [*_LOSS, *[1.6] * 8]},
        ),
        Example(
            "growing and growing",
            {
                GRAD_NORM: [*_BAND, *[3.0 * 1.6**i for i in range(12)]],
                TRAIN_LOSS: [*_LOSS, *[1.6 + 0.02 * i for i in range(12)]],
            },
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("one large gradient", {GRAD_NORM: [*_BAND, 200.0, *_BAND[:7]], TRAIN_LOSS: [*_LOSS, *[1.5] * 8]}),
        Example(
            "grows while the loss falls",
            {GRAD_NORM: [*_BAND, *[100.0] * 8], TRAIN_LOSS: [*_LOSS, *[1.2 - 0.1 * i for i in range(8)]]},
        ),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _ExplodingGradientWatch(self)


class _ExplodingGradientWatch(Watch):
    rule: ExplodingGradient

    def __init__(self, rule: ExplodingGradient) -> None:
        super().__init__(rule)
        self.band: list[float] = []
        self.waiting: list[float] = []
        self.left: tuple[int, float | None] | None = None
        self.open: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        norm = row.values.get(GRAD_NORM)
        if norm is None or not math.isfinite(norm):
            return NOTHING
        track = curves[GRAD_NORM]
        log, n = track.logs[-1], self.rule.points
        if len(self.band) < n:
            self.band.append(log)
            return NOTHING
        level, noise = median(self.band), noise_scale(self.band) or 0.0
        limit = level + max(math.log(self.rule.ratio), self.rule.height * noise)
        self.waiting.append(log)
        if len(self.waiting) > n:
            # A point joins the band n rows late, so that a slow rise cannot pull the band along.
            old = self.waiting.pop(0)
            if old < limit:
                self.band = [*self.band, old][-4 * n :]
        if log >= limit and self.left is None:
            self.left = (row.step, _train_level(curves))
        held = quantile(self.waiting, 0.25)
        if len(self.waiting) < n or held < limit:
            if max(self.waiting) < limit:
                self.left = None
            return self._maybe_resolve(row.step, max(self.waiting) < limit)
        return self._tell(row.step, track, curves, held - level, noise)

    def _tell(self, step: int, track: Track, curves: Curves, rise: float, noise: float) -> Sequence[Finding]:
        now = _train_level(curves)
        first, then = self.left or (step, None)
        if then is not None and now is not None and now < then:
            return NOTHING
        told = self.open
        ratio = math.exp(rise)
        evidence = [Evidence(f"{GRAD_NORM} over its band", ratio, ">=", self.rule.ratio, "ratio", step)]
        if noise > 0:
            evidence.append(Evidence(f"{GRAD_NORM} above its band", rise / noise, ">=", self.rule.height, "sd", step))
        text = f"{GRAD_NORM} has been {ratio:.0f} times its former level or more since about step {first}, now {track.last:.3g}"
        cure = prescribe.lower_rate(curves, f"{GRAD_NORM} left its band and the loss no longer falls")
        self.open = self.finding(
            GRAD_NORM,
            first if told is None else told.first_step,
            step,
            text,
            *evidence,
            prescription=cure if told is None else told.prescription,
        )
        return (self.open,)

    def _maybe_resolve(self, step: int, is_back: bool) -> Sequence[Finding]:
        past = self.open
        if past is None or not is_back:
            return NOTHING
        self.open = None
        text = f"{GRAD_NORM} had left its band and is back in it at step {step}"
        return self.resolved(past, step, text, Severity.INFO)


def _train_level(curves: Curves) -> float | None:
    track = curves.train
    return None if track is None or not track.n else median(track.recent(5))
