"""CD201 loss-spike: the loss jumps far above its recent band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves, Track
from diagnose.model import Evidence, Finding, Row, Severity, Status
from diagnose.names import EVAL_LOSS, TRAIN_LOSS, is_eval_loss
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.spikes import Spike, SpikeDetector

_BAND = [2.0, 1.8, 1.7, 1.62, 1.55, 1.5, 1.46, 1.42]


@dataclass(frozen=True)
class LossSpike(Rule):
    """The loss jumped far above its recent band.

    What it sees:
        A logged loss that stands several noise widths and a clear factor above the level before it, and far above every
        excursion that the band had shown. It says whether and when the loss came back. A spike of the evaluation loss is
        told once it has come back: one that stays is memorization or divergence.

    Why it matters:
        A spike that recovers costs a few steps. One that does not is the beginning of a divergence. Both come from a rate
        near its limit, a broken batch, or too little clipping.

    What to do:
        Nothing for a single spike that recovered. Look at the batch of that step; if spikes repeat, lower the learning rate
        by a factor of 3.

    When it is wrong:
        The logged loss is a mean over the logging window, which hides short spikes. Batches of very unequal difficulty
        (batch size 1, several data sources) make true jumps that harm nothing. A curve with fewer than four points before the
        jump has no band.

    References:
        Molybog et al. 2023, arXiv 2304.09871, on spikes under Adam. Gasser et al. 1986 for the noise. Heights were
        set on the labelled curves behind `fixtures/public`.
    """

    code: ClassVar[str] = "CD201"
    name: ClassVar[str] = "loss-spike"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = (f"{TRAIN_LOSS}|eval/*",)
    meant_false_alarms: ClassVar[str] = (
        "4e-4 a point: five sd of normal noise estimated from 24 points; the ratio makes it rarer"
    )

    height: float = threshold(5.0, unit="sd", low=2.0, high=100.0, source="with the ratio and the tails of the band")
    ratio: float = threshold(1.8, unit="ratio", low=1.05, high=100.0, source="labelled curves: smaller jumps were called noise")
    eval_ratio: float = threshold(1.5, unit="ratio", low=1.05, high=100.0, source="as ratio; an evaluation averages more")
    at_once: float = threshold(5.0, unit="ratio", low=1.05, high=1e6, source="smaller ones wait a point: single outliers pass")
    patience: int = threshold(8, unit="points", low=1, high=1000, source="labelled spikes came back within a few logs")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("a spike that recovers", {TRAIN_LOSS: [*_BAND, 6.0, 1.4, 1.36, 1.35]}),
        Example("a spike at the end", {TRAIN_LOSS: [*_BAND, 6.0]}),
        Example(
            "in the evaluation only",
            {TRAIN_LOSS: [*_BAND, 1.38, 1.35], EVAL_LOSS: [2.1, 1.9, 1.8, 1.75, 1.7, 1.66, 1.62, 3.4, 1.58, 1.55]},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("a smooth fall", {TRAIN_LOSS: [*_BAND, 1.4, 1.38, 1.35]}),
        Example("noise of batch size 1", {TRAIN_LOSS: [2.0, 1.2, 2.4, 0.9, 1.8, 2.6, 1.1, 0.8, 2.2, 1.0, 2.7, 0.9]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _LossSpikeWatch(self)


class _LossSpikeWatch(Watch):
    rule: LossSpike

    def __init__(self, rule: LossSpike) -> None:
        super().__init__(rule)
        self.detectors: dict[str, SpikeDetector] = {}

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        said: list[Finding] = []
        for name, value in row.values.items():
            if (name == TRAIN_LOSS or is_eval_loss(name)) and math.isfinite(value):
                said += self._see_metric(curves[name], curves)
        return said or NOTHING

    def _see_metric(self, track: Track, curves: Curves) -> list[Finding]:
        if track.goes_negative:
            return []
        is_train = track.name == TRAIN_LOSS
        detector = self.detectors.get(track.name)
        if detector is None:
            ratio = self.rule.ratio if is_train else self.rule.eval_ratio
            detector = self.detectors[track.name] = SpikeDetector(self.rule.height, ratio)
        past = detector.open
        spike = detector.add(track, curves.resumed)
        if past is not None and detector.open is None:
            return [self._told(past, track, curves, back=True)]
        if is_train and spike is not None and spike.ratio >= self.rule.at_once:
            return [self._told(spike, track, curves, back=False)]
        if is_train and detector.open is not None and detector.outside == 2:  # noqa: PLR2004 - one point passes by itself
            return [self._told(detector.open, track, curves, back=False)]
        if detector.open is not None and detector.outside > self.rule.patience:
            detector.give_up()
        return []

    def close(self, curves: Curves) -> Sequence[Finding]:
        detector = self.detectors.get(TRAIN_LOSS)
        if detector is None or detector.open is None or detector.outside != 1:
            return NOTHING
        return (self._told(detector.open, curves[TRAIN_LOSS], curves, back=False),)

    def _told(self, spike: Spike, track: Track, curves: Curves, *, back: bool) -> Finding:
        message = f"{track.name} jumped from {spike.base:.4g} to {spike.value:.4g} at step {spike.step}"
        message += f" and was back at step {track.last_step}" if back else f", {spike.ratio:.1f} times its recent level"
        limit = self.rule.ratio if track.name == TRAIN_LOSS else self.rule.eval_ratio
        why = f"{track.name} jumped to {spike.ratio:.1f} times its recent level at step {spike.step} and has not come back"
        return self.finding(
            track.name,
            spike.step,
            track.last_step,
            message,
            Evidence(f"{track.name} over its recent level", spike.ratio, ">=", limit, "ratio", spike.step),
            Evidence(f"{track.name} above its recent band", spike.height, ">=", self.rule.height, "sd", spike.step),
            severity=Severity.INFO if back else Severity.WARNING,
            status=Status.RESOLVED if back else Status.OPEN,
            prescription=None if back else prescribe.lower_rate(curves, why),
        )

    def skip(self, curves: Curves) -> str | None:
        return curves.no_likelihood
