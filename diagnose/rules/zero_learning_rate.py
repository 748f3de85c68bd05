"""CD303 zero-learning-rate: the learning rate is 0 where it should not be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Kind, Prescription, Row, Severity
from diagnose.names import LEARNING_RATE, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median

#: Losses whose median is held against the start, which is the median of as many.
_LEVEL = 3


@dataclass(frozen=True)
class ZeroLearningRate(Rule):
    """The learning rate is 0 log after log, so the weights do not change.

    What it sees:
        A logged learning rate of 0 (or below) from the first log on, beyond what a warm-up and skipped fp16 steps explain,
        or after the rate had been above 0, beyond the end of a schedule. The first is an error once it has lasted and the
        loss has not fallen; the second is a warning, for what was learned before is kept.

    Why it matters:
        Every further step is paid for and changes nothing.

    What to do:
        Make the schedule cover the run: set `num_train_epochs` or `max_steps` to all that is to be trained. After a resume,
        the restored schedule is used up: start a new run from the weights instead of resuming the old one.

    When it is wrong:
        A log that prints too few digits shows a small rate as 0; the rule keeps quiet where it sees such steps, or a falling
        loss. Rates of 0 in the first logs that then rise are a warm-up, and a schedule may end at 0 at the very last logs.

    References:
        transformers `get_scheduler`: linear and cosine schedules stay at 0 beyond `num_training_steps`.
    """

    code: ClassVar[str] = "CD303"
    name: ClassVar[str] = "zero-learning-rate"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (LEARNING_RATE,)
    also: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)
    meant_false_alarms: ClassVar[str] = "none: a rate has no noise"

    at_start: int = threshold(
        5, unit="points", low=2, high=1000, source="a reported healthy run logs four zeros while fp16 skips its first steps"
    )
    certain: int = threshold(10, unit="points", low=2, high=1000, source="twice `at_start`: such an error stops the run")
    at_end: int = threshold(3, unit="points", low=2, high=100, source="schedules of recorded runs end with at most one zero")
    fall: float = threshold(
        0.9, unit="share of the start", low=0.1, high=1.0, source="a loss below that was learned: the log rounds the rate"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example(
            "zero from the start", {LEARNING_RATE: [0.0] * 10, TRAIN_LOSS: [1.5, 1.4, 1.6, 1.5, 1.5, 1.4, 1.5, 1.6, 1.5, 1.5]}
        ),
        Example("schedule ends before the run", {LEARNING_RATE: [3e-5, 2e-5, 1e-5, 0.0, 0.0, 0.0, 0.0]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("warm-up", {LEARNING_RATE: [0.0, 1e-5, 2e-5, 1e-5, 5e-6]}),
        Example("fp16 skips the first steps", {LEARNING_RATE: [0.0, 0.0, 0.0, 0.0, 2e-6, 2e-6, 4e-6]}),
        Example("linear to the end", {LEARNING_RATE: [3e-5, 2e-5, 1e-5, 0.0, 0.0]}),
        Example("printed with four digits", {LEARNING_RATE: [3e-4, 2e-4, 1e-4, 1e-4, 0.0, 0.0, 0.0, 0.0]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _ZeroRateWatch(self)


class _ZeroRateWatch(Watch):
    rule: ZeroLearningRate

    def __init__(self, rule: ZeroLearningRate) -> None:
        super().__init__(rule)
        self.open: Finding | None = None
        self.zeros = 0
        self.first = 0
        #: The last two rates above 0, newest last.
        self.rates: list[float] = []

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        rate = row.values.get(LEARNING_RATE)
        if rate is None or rate != rate:
            return NOTHING
        if rate > 0:
            return self._see_rate(row.step, rate)
        if not self.zeros:
            self.first = row.step
        self.zeros += 1
        if self.rates:
            if self.zeros < self.rule.at_end or self._is_rounded(curves):
                return NOTHING
            said = f"{LEARNING_RATE} is 0 at {self.zeros} logs in a row since step {self.first}, after {self.rates[-1]:.3g}"
            why = f"the schedule ended at step {self.first} and training went on"
            severity = Severity.WARNING
        else:
            if self.zeros < self.rule.at_start or _has_fallen(curves, self.rule.fall):
                return NOTHING
            said = f"{LEARNING_RATE} is 0 at all {self.zeros} logs from the first on"
            why = "the schedule has no step left, or the optimizer got no rate"
            severity = Severity.ERROR if self.zeros >= self.rule.certain else Severity.WARNING
        evidence = Evidence(LEARNING_RATE, rate, "<=", 0.0, step=row.step)
        self.open = self.finding(
            LEARNING_RATE, self.first, row.step, said, evidence, severity=severity, prescription=_cure(why, bool(self.rates))
        )
        return (self.open,)

    def _is_rounded(self, curves: Curves) -> bool:
        """Whether the rate stood still below its peak before it was 0: it fell, but the log prints too few digits."""
        return self.rates[0] == self.rates[-1] < (curves.peak_lr or 0.0) and len(self.rates) > 1

    def _see_rate(self, step: int, rate: float) -> Sequence[Finding]:
        self.rates = [*self.rates, rate][-2:]
        self.zeros = 0
        past, self.open = self.open, None
        if past is None:
            return NOTHING
        message = f"{LEARNING_RATE} was 0 from step {past.first_step} on and is {rate:.3g} again"
        return self.resolved(past, step, message)


def _has_fallen(curves: Curves, share: float) -> bool:
    """Whether the loss went down all the same, so that the logged 0 cannot be the rate."""
    train = curves.train
    return train is not None and train.n > 0 and median(train.recent(_LEVEL)) < share * train.start


def _cure(why: str, ended: bool) -> Prescription:
    first = "Set num_train_epochs or max_steps so that the schedule covers the whole run"
    then = (
        "end the run where the schedule ends"
        if ended
        else "start a new run from the weights instead of resuming a finished one"
    )
    return prescribe.other_cause(f"{first}, or {then}.", why)
