"""The types that cross from one stage to the next: log to Run, Run to Finding, Finding to Report.

All are frozen. Nothing here knows about log formats, rules or rendering.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: A setting of the training, as plain JSON knows it.
Setting = str | int | float | bool | None

#: What a finding about a setting names in place of a metric.
SETTINGS = "settings"
#: How the reason of a Skip begins where a setting is not known; the names follow, with commas between them.
UNTOLD = "the log does not tell "
#: How the reason of a Skip begins where the rule is for another kind of run; the kind of this one follows.
OTHER_KIND = "has no meaning for a run of kind "

Relation = Literal["<", "<=", ">", ">=", "==", "is not finite", "is finite"]

#: Version of the JSON report; it changes when a key changes its meaning.
SCHEMA = 1


class Severity(StrEnum):
    """How much a finding matters: a fact, a trouble to look at, or a run that is lost."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for info, 1 for warning, 2 for error: for comparisons."""
        return ("info", "warning", "error").index(self.value)


class Status(StrEnum):
    """Whether what was found still holds at the last row seen."""

    OPEN = "open"
    RESOLVED = "resolved"


class Verdict(StrEnum):
    """One word for a run."""

    HEALTHY = "HEALTHY"
    WATCH = "WATCH"
    SICK = "SICK"
    INCONCLUSIVE = "INCONCLUSIVE"


class Kind(StrEnum):
    """What the logged loss means, told from the keys that a log holds."""

    SUPERVISED = "supervised"
    PREFERENCE = "preference"
    RL = "rl"


@dataclass(frozen=True, slots=True)
class Row:
    """What one log call said.

    Args:
        step: optimizer step.
        values: canonical metric name to value; NaN and inf allowed. `epoch` is not among them.
        epoch: passes over the training data so far, a float; None when the log does not say.
    """

    step: int
    values: Mapping[str, float]
    epoch: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One metric over the optimizer steps.

    Args:
        name: canonical name, such as `train/loss`.
        step: (n,) optimizer steps, strictly increasing.
        value: (n,) NaN and inf allowed.
        span: (n,) optimizer steps averaged into each point; 1 for a metric of a single step.

    Raises:
        ValueError: lengths differ, or steps do not strictly increase.
    """

    name: str
    step: IntArray
    value: FloatArray
    span: IntArray

    def __post_init__(self) -> None:
        """Check lengths and order once, so that no later stage has to."""
        if not self.step.shape == self.value.shape == self.span.shape or self.step.ndim != 1:
            raise ValueError(
                f"series {self.name}: step, value and span must be of one length, "
                f"got {self.step.shape}, {self.value.shape}, {self.span.shape}"
            )
        if self.step.size > 1 and not bool((np.diff(self.step) > 0).all()):
            raise ValueError(f"series {self.name}: steps must strictly increase")

    def __len__(self) -> int:
        """Number of logged points."""
        return int(self.step.size)

    def between(self, after: int | None, last: int | None) -> Series:
        """The points at steps above `after`, up to and with `last`; None leaves that end open."""
        start = 0 if after is None else int(np.searchsorted(self.step, after, side="right"))
        end = len(self) if last is None else int(np.searchsorted(self.step, last, side="right"))
        return Series(self.name, self.step[start:end], self.value[start:end], self.span[start:end])


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader dropped, merged or could not know.

    Args:
        kind: a kebab-case word for programs: `steps-go-back`, `mixed-runs`, `counted-steps`, `not-a-number`, …
        text: a sentence for people.
        step: where, when that makes sense.
    """

    kind: str
    text: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One training run, whatever log it came from.

    Args:
        id: the run's path below the argument that was read, without `.json`; unique within one reading.
        source: where it was read from, or `live`.
        series: canonical name to Series. `epoch` is a series like the others.
        settings: what is known of the training's settings, plain JSON values by the Trainer's own names.
        notes: what the reader dropped, merged or could not know.
        clock: seconds since 1970 at which each step was logged, never decreasing; None where the log does not tell. It is for
            showing only: no rule sees it, so that the same losses give the same report at any speed.
    """

    id: str
    source: str
    series: Mapping[str, Series]
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[Note, ...] = ()
    clock: Series | None = None

    def rows(self) -> Iterator[Row]:
        """The run as it was logged: one Row a step, in order.

        Yields:
            Rows with strictly increasing steps, holding every metric that has a point at that step.
        """
        epoch: dict[int, float] = {}
        at: dict[int, dict[str, float]] = {}
        for name, series in self.series.items():
            pairs = zip(series.step.tolist(), series.value.tolist(), strict=True)
            if name == "epoch":
                epoch = dict(pairs)
                continue
            for step, value in pairs:
                at.setdefault(step, {})[name] = value
        for step in sorted(at):
            yield Row(step, at[step], epoch.get(step))

    def until(self, step: int) -> Run:
        """The run as it stood at `step`: later points and later notes left out."""
        cut = {name: part for name, series in self.series.items() if len(part := series.between(None, step))}
        notes = tuple(note for note in self.notes if note.step is None or note.step <= step)
        clock = None if self.clock is None else self.clock.between(None, step)
        return Run(self.id, self.source, cut, self.settings, notes, clock)

    def after(self, step: int) -> Run:
        """What was logged after `step`; the notes are kept."""
        cut = {name: part for name, series in self.series.items() if len(part := series.between(step, None))}
        clock = None if self.clock is None else self.clock.between(step, None)
        return Run(self.id, self.source, cut, self.settings, self.notes, clock)

    @property
    def last_step(self) -> int:
        """The last logged optimizer step; 0 for a run without points."""
        return max((int(s.step[-1]) for s in self.series.values() if len(s)), default=0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A comparison that a finding rests on, kept so that it can be made again.

    Args:
        what: the quantity, in words: `train/loss above its best`.
        value: as measured.
        relation: how it stands to the limit. `is not finite` and `is finite` have no limit.
        limit: what it was compared with, in the same unit.
        unit: of both; empty for a plain ratio.
        step: where it was measured.

    >>> Evidence("train/loss", 9.0, ">", 2.5, "nats", 40).holds()
    True
    """

    what: str
    value: float
    relation: Relation
    limit: float | None = None
    unit: str = ""
    step: int | None = None

    def holds(self) -> bool:
        """Whether the comparison is true of the numbers given."""
        if self.relation == "is not finite":
            return not math.isfinite(self.value)
        if self.relation == "is finite":
            return math.isfinite(self.value)
        if self.limit is None:
            return False
        return {
            "<": self.value < self.limit,
            "<=": self.value <= self.limit,
            ">": self.value > self.limit,
            ">=": self.value >= self.limit,
            "==": self.value == self.limit,
        }[self.relation]


@dataclass(frozen=True, slots=True)
class Change:
    """One setting to change.

    Args:
        setting: its name in the Trainer's own words, such as `learning_rate`.
        before: its value now; None when the log does not say.
        after: the value to use; None when `before` is unknown and only the factor is.
        factor: after / before; None for a setting that is not a number.
    """

    setting: str
    before: Setting
    after: Setting
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Prescription:
    """What to do next: at most two changed settings, the reason, and what to leave alone.

    Args:
        changes: at most two, so that it can be told which one helped.
        advice: what to do, in one or two imperative sentences.
        why: the reason in one sentence.
        do_not: what not to change or not to do.
        checkpoint_step: the best checkpoint to go back to; None when none is known.
        output_dir: a folder name for the next run that carries the changed settings.

    Raises:
        ValueError: more than two changes.
    """

    changes: tuple[Change, ...]
    advice: str
    why: str
    do_not: tuple[str, ...] = ()
    checkpoint_step: int | None = None
    output_dir: str | None = None

    def __post_init__(self) -> None:
        """Refuse a third change: nobody could tell which one helped."""
        if len(self.changes) > 2:  # noqa: PLR2004 - the limit is the type's own law
            raise ValueError(f"a prescription changes at most two settings, got {len(self.changes)}")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule saw, where, and the numbers that show it.

    `(code, metric, first_step)` names a finding for life: a later finding with the same key replaces it, because it was
    extended, grew more serious or was resolved.
    """

    code: str
    name: str
    severity: Severity
    metric: str
    first_step: int
    last_step: int
    message: str
    evidence: tuple[Evidence, ...]
    status: Status = Status.OPEN
    prescription: Prescription | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """What stays the same while a finding grows."""
        return (self.code, self.metric, self.first_step)


@dataclass(frozen=True, slots=True)
class Skip:
    """A rule that could not look, and why. Could not look is not healthy."""

    code: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Crash:
    """A bug in one of our rules. The training and the other rules go on."""

    code: str
    error: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint to keep: the lowest validation loss, not the last step."""

    step: int
    value: float
    metric: str


class RateDirection(StrEnum):
    """Which way the learning rate should go."""

    UP = "up"
    DOWN = "down"
    HOLD = "hold"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LearningRateVerdict:
    """Which way the learning rate of the next run should go, and what that rests on.

    Args:
        direction: up, down, hold, or unknown: silence is as deliberate as advice.
        factor: 3 or 9 for up and down; None otherwise.
        before: the peak rate of this run; None when it is not known.
        after: the rate advised, held inside the method's range; None without one.
        confidence: share of recorded sweeps' runs of this look for which the direction was right; 0 for unknown.
        evidence: the comparisons behind it.
        reason: one sentence.
        chances: of up, hold and down, where the course of the loss was weighed; empty where a finding or want of data decided.
    """

    direction: RateDirection
    factor: float | None
    before: float | None
    after: float | None
    confidence: float
    evidence: tuple[Evidence, ...]
    reason: str
    chances: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopDecision:
    """Whether, where and why a live doctor ends the run.

    Args:
        stop: whether to end the run.
        step: the step at which it was decided; None while it was not.
        because: the finding that decided it.
        best_step: the checkpoint to go back to, as known at that step.
    """

    stop: bool
    step: int | None = None
    because: Finding | None = None
    best_step: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that an examination concluded. No clock, host or absolute path inside: the same log gives the same report."""

    id: str
    source: str
    verdict: Verdict
    headline: str
    findings: tuple[Finding, ...]
    skips: tuple[Skip, ...]
    crashes: tuple[Crash, ...]
    notes: tuple[Note, ...]
    best: Best | None
    stop: StopDecision
    prescription: Prescription | None
    settings: Mapping[str, Setting]
    last_step: int
    n_points: int
    learning_rate: LearningRateVerdict | None = None
    kind: Kind = Kind.SUPERVISED
    schema: int = SCHEMA
