"""One run of a comparison: examined, with what is known of its settings, and with a name that tells it from the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np

from diagnose.curves import Curves, Track
from diagnose.examination import Examination
from diagnose.loss_differences import Point, level_of
from diagnose.model import Finding, Report, Run, Severity, Status
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Rule
from diagnose.settings_changed import Known, settings_of

#: Findings after which the training loss is no number, or none that says anything.
_LOST = frozenset({"nan-loss", "hidden-nan", "zero-loss"})


@dataclass(frozen=True, slots=True)
class Seen:
    """A run that was examined.

    Args:
        run: as read.
        report: of its examination.
        curves: its metrics at its end.
        known: what is known of its settings.
    """

    run: Run
    report: Report
    curves: Curves
    known: Known

    @property
    def id(self) -> str:
        """The run's own."""
        return self.run.id

    @property
    def errors(self) -> list[str]:
        """Names of the errors that are open."""
        return [f.name for f in self._open_errors()]

    @property
    def is_lost(self) -> bool:
        """Whether the training loss ended as no number, or as none that says anything."""
        return self._is_lost_at(self.report.last_step)

    def level_at(self, step: int) -> Point | None:
        """The level of the training loss as it stood at a step; NaN for a run that was lost by then."""
        if self._is_lost_at(step):
            return Point(math.nan, step)
        level = level_of(self._train_at(step))
        return None if level is None else replace(level, step=step)

    def is_same_curve(self, other: Seen) -> bool:
        """Whether two runs hold the same losses at the same steps."""
        mine, others = self.run.series, other.run.series
        names = {name for name in (*mine, *others) if "loss" in name}
        if not names or not all(name in mine and name in others for name in names):
            return False
        pairs = [(mine[name], others[name]) for name in names]
        return all(np.array_equal(a.step, b.step) and np.array_equal(a.value, b.value, equal_nan=True) for a, b in pairs)

    def _open_errors(self) -> list[Finding]:
        return [f for f in self.report.findings if f.severity is Severity.ERROR and f.status is Status.OPEN]

    def _is_lost_at(self, step: int) -> bool:
        train = self.curves.train
        ends_bad = train is not None and train.bad_in_a_row > 0 and step >= train.last_step
        return ends_bad or any(f.name in _LOST and f.first_step <= step for f in self._open_errors())

    def _train_at(self, step: int) -> Track | None:
        train = self.curves.train
        if train is None or train.last_step <= step:
            return train
        series = self.run.until(step).series.get(TRAIN_LOSS)
        if series is None:
            return None
        cut = Track(TRAIN_LOSS, int(series.step[0]))
        for at, value in zip(series.step.tolist(), series.value.tolist(), strict=True):
            cut.add(at, value)
        return cut


def look(run: Run, rules: Sequence[Rule] | None = None) -> Seen:
    """Examine a run, as `examine` does."""
    exam = Examination(rules, settings=run.settings, notes=run.notes)
    for row in run.rows():
        exam.feed(row)
    return Seen(run, exam.report(run.id, run.source), exam.curves, settings_of(run))


def named_apart(runs: Sequence[Run]) -> list[Run]:
    """The runs, those of files of one name called by the part of their path that tells them apart."""
    parts = [PurePosixPath(run.source.replace("\\", "/")).parts for run in runs]
    if len({run.id.partition("#")[0] for run in runs}) == len(runs) or len(set(parts)) < len(runs):
        return list(runs)
    shortest = min(map(len, parts))
    head = next((i for i in range(shortest) if len({p[i] for p in parts}) > 1), shortest)
    tail = next((i for i in range(shortest - head) if len({p[-1 - i] for p in parts}) > 1), shortest - head)
    names = ["/".join(p[head : len(p) - tail]) for p in parts]
    return [replace(run, id=name) for run, name in zip(runs, names, strict=True)] if all(names) else list(runs)
