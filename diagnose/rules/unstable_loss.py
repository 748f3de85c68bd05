"""CD203 unstable-loss: repeated spikes, swinging evaluations, or gradients over many orders of magnitude."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves, Track
from diagnose.model import Evidence, Finding, Row, Severity
from diagnose.names import EVAL_LOSS, GRAD_NORM, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.spikes import SpikeDetector

_CALM = [1.5, 1.46, 1.44, 1.43, 1.42, 1.4, 1.39, 1.38]


@dataclass(frozen=True)
class UnstableLoss(Rule):
    """The run does not settle: spikes come again and again, evaluations swing, or gradients jump by orders of magnitude.

    What it sees:
        Several spikes of one loss within a short stretch; or an evaluation loss whose noise from one evaluation to the next
        is a large share of its value; or gradient norms that spread over orders of magnitude while the loss is still high.

    Why it matters:
        The run is close to the edge of what its learning rate allows. It may still improve, but slowly and by luck.

    What to do:
        Lower the learning rate by a factor of 3, or average over more examples a step.

    When it is wrong:
        Very small evaluation sets swing by themselves. Gradients of a run that has memorized its data jump by orders of
        magnitude too; that is why the loss has to be high still.

    References:
        Gasser et al. 1986 for the noise. Limits were set on the labelled curves behind `fixtures/public`.
    """

    code: ClassVar[str] = "CD203"
    name: ClassVar[str] = "unstable-loss"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = (f"{TRAIN_LOSS}|{EVAL_LOSS}",)
    also: ClassVar[tuple[str, ...]] = (GRAD_NORM,)
    meant_false_alarms: ClassVar[str] = "3e-2 a run: none of 106 healthy labelled runs, upper bound at 95 %"

    spikes: int = threshold(3, unit="spikes", low=2, high=100, source="one is chance, two may be one broken item seen twice")
    within: int = threshold(50, unit="points", low=3, high=10_000, source="labelled curves: calm runs had them 60 points apart")
    height: float = threshold(5.0, unit="sd", low=2.0, high=100.0, source="as for loss-spike")
    ratio: float = threshold(1.8, unit="ratio", low=1.05, high=100.0, source="as for loss-spike")
    eval_noise: float = threshold(
        0.35, unit="share of the value", low=0.05, high=10.0, source="healthy labelled curves stay below 0.21"
    )
    eval_rise: float = threshold(
        0.3, unit="share of the value", low=0.0, high=10.0, source="two rises this large: steep falls make noise as well"
    )
    grad_spread: float = threshold(
        2.0, unit="sd of the logarithm", low=0.5, high=20.0, source="a factor of 7 either way; healthy curves stay below 1.1"
    )
    still_high: float = threshold(0.3, unit="share of the start", low=0.0, high=1.0, source="below it the run has memorized")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("three spikes", {TRAIN_LOSS: [*_CALM, 5.0, 1.4, 1.38, 1.37, 5.5, 1.36, 1.36, 1.35, 6.0, 1.35, 1.34]}),
        Example(
            "swinging evaluations",
            {
                TRAIN_LOSS: [1.0, 0.9, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55],
                EVAL_LOSS: [0.7, 1.4, 0.65, 1.5, 0.6, 1.4, 0.6, 1.5],
            },
        ),
        Example(
            "gradients over six orders of magnitude",
            {TRAIN_LOSS: [1.5 - 0.02 * i for i in range(16)], GRAD_NORM: [100.0, 0.01, 30.0, 0.2, 900.0, 0.05, 7.0, 0.001] * 2},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("one spike", {TRAIN_LOSS: [*_CALM, 5.0, 1.4, 1.38, 1.37, 1.36, 1.35]}),
        Example("noise of batch size 1", {TRAIN_LOSS: [2.0, 1.2, 2.4, 0.9, 1.8, 2.6, 1.1, 0.8, 2.2, 1.0, 2.7, 0.9]}),
        Example(
            "noisy gradients",
            {TRAIN_LOSS: [1.5 - 0.02 * i for i in range(16)], GRAD_NORM: [1.0, 2.0, 0.7, 3.0, 1.2, 0.5, 2.5, 0.9] * 2},
        ),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _UnstableLossWatch(self)


class _UnstableLossWatch(Watch):
    rule: UnstableLoss

    def __init__(self, rule: UnstableLoss) -> None:
        super().__init__(rule)
        self.detectors = {name: SpikeDetector(rule.height, rule.ratio) for name in (TRAIN_LOSS, EVAL_LOSS)}
        self.seen: dict[str, deque[tuple[int, int]]] = {name: deque(maxlen=rule.spikes) for name in self.detectors}
        self.told: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        for name, value in row.values.items():
            if not math.isfinite(value):
                continue
            track = curves[name]
            said = None
            if name in self.detectors and not track.goes_negative:
                said = self._see_spikes(track, curves) or (self._see_swings(track) if name == EVAL_LOSS else None)
            elif name == GRAD_NORM:
                said = self._see_gradients(track, curves)
            if said is not None:
                return self._tell(name, said, row.step, curves)
        return NOTHING

    def _see_spikes(self, track: Track, curves: Curves) -> tuple[str, Evidence, int] | None:
        detector, seen = self.detectors[track.name], self.seen[track.name]
        spike = detector.add(track, curves.resumed)
        if detector.outside > self.rule.within:
            detector.give_up()
        if spike is None:
            return None
        seen.append((track.n, spike.step))
        first_n, first_step = seen[0]
        span = track.n - first_n
        if len(seen) < self.rule.spikes or span > self.rule.within:
            return None
        text = f"{track.name} spiked {len(seen)} times between steps {first_step} and {spike.step}"
        return (
            text,
            Evidence(f"points between {len(seen)} spikes", span, "<=", self.rule.within, "points", spike.step),
            first_step,
        )

    def _see_swings(self, track: Track) -> tuple[str, Evidence, int] | None:
        noise, logs = track.noise, list(track.logs)
        if noise is None or noise < self.rule.eval_noise:
            return None
        rises = sum(b - a >= math.log1p(self.rule.eval_rise) for a, b in pairwise(logs))
        if rises < 2:  # noqa: PLR2004 - one rise is a spike
            return None
        text = f"{track.name} swings by about {100 * math.expm1(noise):.0f} % from one evaluation to the next"
        evidence = Evidence(f"noise of {track.name}", noise, ">=", self.rule.eval_noise, "share", track.last_step)
        return text, evidence, track.head_steps[0]

    def _see_gradients(self, track: Track, curves: Curves) -> tuple[str, Evidence, int] | None:
        train = curves.train
        if train is None or track.n < 12 or train.n < 3:  # noqa: PLR2004 - a spread needs a dozen points
            return None
        if train.level < self.rule.still_high * train.start:
            return None
        noise = track.noise
        if noise is None or noise < self.rule.grad_spread:
            return None
        text = f"{track.name} jumps by factors of about {math.exp(noise):.0f} from log to log"
        evidence = Evidence(f"noise of ln {track.name}", noise, ">=", self.rule.grad_spread, "sd", track.last_step)
        return text, evidence, track.head_steps[0]

    def _tell(self, name: str, said: tuple[str, Evidence, int], step: int, curves: Curves) -> Sequence[Finding]:
        text, evidence, first = said
        told = self.told
        if told is not None and told.metric != name:
            return NOTHING
        cure = prescribe.lower_rate(curves, text) if told is None else told.prescription
        first = first if told is None else told.first_step
        self.told = self.finding(name, first, step, text, evidence, prescription=cure)
        return (self.told,)

    def skip(self, curves: Curves) -> str | None:
        return curves.no_likelihood
