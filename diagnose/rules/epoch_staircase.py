"""CD402 epoch-staircase: the training loss drops at epoch boundaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Row, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median, noise_scale, trend

#: Points of one epoch that are kept: enough for its trend and its end.
_KEPT = 64
#: A slope within the epoch counts unless it is this likely to be chance: leaving a true one out makes a step of it.
_UNSURE = 0.2
#: The standard error of a median is this multiple of that of a mean, for normal noise: sqrt(pi / 2).
_MEDIAN_ERROR = math.sqrt(math.pi / 2)

_STEPS = [v + d for v in (2.0, 1.5, 1.1) for d in (0.06, 0.02, 0.05, 0.01, 0.04, 0.03, 0.0, 0.05, 0.02, 0.04)]
_EPOCHS = [(i + 1) / 10 for i in range(30)]


@dataclass(frozen=True)
class EpochStaircase(Rule):
    """The training loss drops when the data begins again.

    What it sees:
        At a boundary between epochs the training loss steps down, by more than the trend within the epoch explains and by
        several times the error of the levels before and after. One clear step is enough, or several smaller ones.

    Why it matters:
        The model recognizes examples that it has seen once: memorization begins. That alone does not harm, and experts
        disagree on how much it says; the evaluation loss decides.

    What to do:
        Watch the evaluation loss, and evaluate several times an epoch if you do not yet. Never stop on this alone.

    When it is wrong:
        Data in a fixed order that grows easier makes a saw whose teeth look like steps. With fewer than four logs an
        epoch, or without a logged epoch, it cannot look.

    References:
        Howard & Whitaker 2023, "Can LLMs learn from a single example?", on the same shape. Stouffer's sum of z for several
        boundaries. Limits were set on the labelled curves behind `fixtures/public`.
    """

    code: ClassVar[str] = "CD402"
    name: ClassVar[str] = "epoch-staircase"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)

    drop: float = threshold(0.10, unit="share of the loss", low=0.0, high=1.0, source="one step that readers call a stair")
    small_drop: float = threshold(0.03, unit="share of the loss", low=0.0, high=1.0, source="one of several")
    height: float = threshold(4.0, unit="standard errors", low=1.0, high=100.0, source="1 in 30,000 for normal noise")
    together: float = threshold(
        3.0, unit="standard errors", low=1.0, high=100.0, source="1 in 700 for normal noise over all boundaries"
    )
    points: int = threshold(4, unit="points an epoch", low=3, high=1000, source="two before and two after the boundary")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("three epochs", {TRAIN_LOSS: _STEPS, "epoch": _EPOCHS}),
        Example(
            "one cliff",
            {TRAIN_LOSS: [0.2, 0.17, 0.18, 0.17, 0.18, 0.17, 0.07, 0.06, 0.07, 0.06], "epoch": [i / 5 for i in range(10)]},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("a smooth fall", {TRAIN_LOSS: [2.0 * 0.97**i for i in range(30)], "epoch": _EPOCHS}),
        Example("no epochs logged", {TRAIN_LOSS: _STEPS}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _EpochStaircaseWatch(self)


class _EpochStaircaseWatch(Watch):
    rule: EpochStaircase

    def __init__(self, rule: EpochStaircase) -> None:
        super().__init__(rule)
        self.epoch: int | None = None
        self.before: list[float] = []
        self.now: list[float] = []
        self.n_before = 0
        self.n_now = 0
        self.boundary = 0
        self.is_due = False
        self.n_looked = 0
        self.steps: list[tuple[int, float, float]] = []
        self.told: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        track = curves[TRAIN_LOSS]
        if row.epoch is None or not math.isfinite(row.epoch) or not math.isfinite(track.last) or track.goes_negative:
            return NOTHING
        if track.last <= track.floor:
            return NOTHING  # a hidden NaN is logged as 0: no step of any stair
        # A point logged at epoch 1.0 closes the first epoch.
        epoch = math.ceil(row.epoch - 1e-9)
        if epoch != self.epoch:
            follows = self.epoch is not None and epoch == self.epoch + 1
            self.before, self.n_before = (self.now, self.n_now) if follows else ([], 0)
            self.now, self.n_now, self.epoch, self.boundary = [], 0, epoch, row.step
            self.is_due = follows and self.n_before >= self.rule.points
        self.n_now += 1
        self.now.append(track.logs[-1])
        del self.now[:-_KEPT]
        k = min(_KEPT // 2, max(2, self.n_before // 3))
        # The first point of an epoch may average over the boundary; it counts for neither side.
        if not self.is_due or self.n_now < k + 1:
            return NOTHING
        self.is_due = False
        return self._see_boundary(self.now[1 : k + 1], k, row.step)

    def _see_boundary(self, after: list[float], k: int, step: int) -> Sequence[Finding]:
        self.n_looked += 1
        noise = noise_scale([*self.before, *after]) or 0.0
        # The epoch's own fall, from its later half: the start of a run falls faster than where the boundary is.
        late = self.before[-max(4, len(self.before) // 2) :]
        test = trend(range(len(late)), late)
        slope = 0.0 if test is None or test.p > _UNSURE else min(0.0, test.slope)
        drop = median(self.before[-k:]) - median(after) + slope * (k + 1)
        if drop < math.log1p(self.rule.small_drop):
            return NOTHING
        error = max(noise * _MEDIAN_ERROR * math.sqrt(2.0 / k), 1e-9)
        self.steps.append((self.boundary, drop, drop / error))
        return self._tell(step)

    def _tell(self, step: int) -> Sequence[Finding]:
        rule = self.rule
        biggest = max(self.steps, key=lambda s: s[1] if s[2] >= rule.height else 0.0)
        together = sum(z for _, _, z in self.steps) / math.sqrt(self.n_looked)
        if biggest[2] >= rule.height and biggest[1] >= rule.drop:
            at, drop, z = biggest
            evidence = (
                Evidence(f"drop of {TRAIN_LOSS} at the boundary", drop, ">=", rule.drop, "share", at),
                Evidence("drop over its standard error", z, ">=", rule.height, "sd", at),
            )
        elif len(self.steps) > 1 and together >= rule.together:
            evidence = (
                Evidence("drops over their standard error, together", together, ">=", rule.together, "sd", step),
                Evidence("boundaries with a drop", len(self.steps), ">=", 2, "boundaries", step),
            )
        else:
            return NOTHING
        n = len(self.steps)
        share = 100 * -math.expm1(-max(d for _, d, _ in self.steps))
        text = f"{TRAIN_LOSS} drops at {n} of {self.n_looked} epoch boundaries, by up to {share:.0f} %: examples are recognized"
        first = self.told.first_step if self.told is not None else min(s for s, _, _ in self.steps)
        self.told = self.finding(TRAIN_LOSS, first, step, text, *evidence)
        return (self.told,)

    def skip(self, curves: Curves) -> str | None:
        if curves.no_likelihood:
            return curves.no_likelihood
        if self.epoch is None:
            return "the log has no epoch"
        return None if self.n_looked else f"needs {self.rule.points} logs of {TRAIN_LOSS} an epoch and two epochs"
