"""CD602 dpo-overoptimized: the margin is bought with the probability of the chosen answers, or nothing is left to learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.levels import LEVEL_POINTS, mean, spread
from diagnose.model import Evidence, Finding, Kind, Row, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median

CHOSEN, REJECTED, LOGPS = "train/rewards/chosen", "train/rewards/rejected", "train/logps/chosen"
ACCURACY = "train/rewards/accuracies"
_RISING = [0.1 * i for i in range(40)]


@dataclass(frozen=True)
class DpoOveroptimized(Rule):
    """The chosen answers lose most of their probability, or every pair is told apart and the loss is 0.

    What it sees:
        The log-probability of the chosen answers has fallen to a multiple of where it started while their reward is
        negative; where log-probabilities are not logged, rewards of chosen and rejected answers that both plunge far
        below 0. Or every pair is told apart within the first epoch with next to no loss left. A negative chosen reward
        alone is normal and not reported.

    Why it matters:
        The loss only asks for a margin. It grows as well when both answers become improbable, and what the model then
        writes is neither: repeated tokens, other languages, endless answers.

    What to do:
        Read a few generations. Go back to an earlier checkpoint; train with a third of the learning rate, a larger beta, or
        an added likelihood term on the chosen answers (`rpo_alpha`).

    When it is wrong:
        The reward's scale is beta: where only rewards are logged, a large beta looks worse than it is. Published models
        have lost half of the log-probability and are well liked, so less than that is not reported.

    References:
        Pal et al. 2024, "Smaug": the failure mode of a falling chosen likelihood. Rafailov et al. 2024, "Scaling Laws for
        Reward Model Overoptimization in Direct Alignment Algorithms".
    """

    code: ClassVar[str] = "CD602"
    name: ClassVar[str] = "dpo-overoptimized"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = (CHOSEN,)
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.PREFERENCE})

    lost: float = threshold(
        1.0, unit="share of the first log-probability", low=0.1, high=100.0, source="published good models lose up to 0.7"
    )
    height: float = threshold(5.0, unit="standard errors", low=0.0, high=50.0, source="batches differ in length")
    plunge: float = threshold(8.0, unit="reward", low=0.5, high=1000.0, source="twice what published good models show")
    saturated: float = threshold(0.999, unit="share", low=0.5, high=1.0, source="every pair of the recent points told apart")
    loss_left: float = threshold(
        0.015, unit="share of the first loss", low=0.0, high=0.5, source="ln 2 to 0.01: a margin of 4.6 at every pair"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example(
            "log-probability gone",
            {
                TRAIN_LOSS: [0.69 * 0.93**i for i in range(40)],
                CHOSEN: [-0.5 * i for i in range(40)],
                REJECTED: [-0.7 * i for i in range(40)],
                LOGPS: [-200.0 - 16.0 * i + 10 * (-1) ** i for i in range(40)],
            },
        ),
        Example(
            "both rewards plunge",
            {
                TRAIN_LOSS: [0.69 * 0.93**i for i in range(40)],
                CHOSEN: [-0.5 * i for i in range(40)],
                REJECTED: [-0.7 * i for i in range(40)],
            },
        ),
        Example(
            "told apart in a third of an epoch",
            {
                TRAIN_LOSS: [0.69 * 0.7**i for i in range(40)],
                CHOSEN: _RISING,
                REJECTED: [-3 * v for v in _RISING],
                ACCURACY: [0.5, 0.7, 0.9] + [1.0] * 37,
                "epoch": [0.01 * i for i in range(40)],
            },
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example(
            "chosen reward negative",
            {
                TRAIN_LOSS: [0.69 * 0.98**i for i in range(40)],
                CHOSEN: [-0.03 * i for i in range(40)],
                REJECTED: [-0.08 * i for i in range(40)],
                LOGPS: [-200.0 - 0.3 * i for i in range(40)],
            },
        ),
        Example(
            "all pairs told apart, still learning",
            {TRAIN_LOSS: [0.69 * 0.96**i for i in range(40)], CHOSEN: _RISING, ACCURACY: [0.5] * 5 + [1.0] * 35},
        ),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _DpoOveroptimizedWatch(self)


class _DpoOveroptimizedWatch(Watch):
    rule: DpoOveroptimized

    def __init__(self, rule: DpoOveroptimized) -> None:
        super().__init__(rule)
        self.open: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        chosen = curves[CHOSEN]
        if CHOSEN not in row.values or not math.isfinite(chosen.last) or chosen.n < 2 * LEVEL_POINTS:
            return NOTHING
        level = median(chosen.recent(LEVEL_POINTS))
        seen = (self._lost(level, curves) or self._saturated(curves)) if self.open is None else self._lost(level, curves)
        if seen is None:
            return NOTHING
        text, evidence = seen
        first = row.step if self.open is None else self.open.first_step
        cure = prescribe.lower_rate(
            curves, "the margin grows at the cost of what the model can say, or has nothing left to gain"
        )
        self.open = self.finding(CHOSEN, first, row.step, text, *evidence, prescription=cure)
        return (self.open,)

    def _lost(self, level: float, curves: Curves) -> tuple[str, list[Evidence]] | None:
        rule, logps, rejected, step = self.rule, curves.get(LOGPS), curves.get(REJECTED), curves.last_step
        if logps is not None and logps.n >= 2 * LEVEL_POINTS:
            start, now = mean(logps.head), mean(logps.recent(LEVEL_POINTS))
            error = spread(list(logps.values)) * math.sqrt(2 / LEVEL_POINTS)
            if not (start < 0 and level < 0 and now < start and math.isfinite(now)):
                return None
            share, sigmas = (start - now) / -start, (start - now) / error if error else math.inf
            if share < rule.lost or sigmas < rule.height:
                return None
            return (
                f"{LOGPS} fell from {start:.4g} to {now:.4g}: the chosen answers themselves became improbable",
                [
                    Evidence(f"{LOGPS} lost", share, ">=", rule.lost, "share", step),
                    Evidence(f"{LOGPS} below its start", sigmas, ">=", rule.height, "standard errors", step),
                ],
            )
        other = math.nan if rejected is None or not rejected.n else median(rejected.recent(LEVEL_POINTS))
        if not (level <= -rule.plunge and other <= -rule.plunge):
            return None
        return (
            f"rewards of chosen ({level:.3g}) and rejected answers ({other:.3g}) both plunged far below 0",
            [
                Evidence(CHOSEN, level, "<=", -rule.plunge, "reward", step),
                Evidence(REJECTED, other, "<=", -rule.plunge, "reward", step),
            ],
        )

    def _saturated(self, curves: Curves) -> tuple[str, list[Evidence]] | None:
        rule, accuracy, train, step = self.rule, curves.get(ACCURACY), curves.train, curves.last_step
        if accuracy is None or train is None or min(accuracy.n, train.n) < LEVEL_POINTS or (curves.epoch or 0.0) > 1:
            return None
        right, loss = mean(accuracy.recent(LEVEL_POINTS)), median(train.recent(LEVEL_POINTS))
        left = loss / train.start if train.start > 0 else math.nan
        if not (right >= rule.saturated and 0 <= left <= rule.loss_left):
            return None
        return (
            f"every pair of the last {LEVEL_POINTS} logs is told apart, the loss is {loss:.2g}: they teach nothing more",
            [
                Evidence(ACCURACY, right, ">=", rule.saturated, "share", step),
                Evidence(f"{TRAIN_LOSS} left", left, "<=", rule.loss_left, "share", step),
            ],
        )
