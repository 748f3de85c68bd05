"""One run and its examination, which goes on where it was when the run has grown."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.examination import Examination
from diagnose.model import Report, Row, Run, Series
from diagnose.rules import Rule


class Examined:
    """A run with its report.

    A row of the last step may still get more metrics, and an examination takes no row back. So all rows before the last step
    are fed to one examination, which is kept, and the last step to a copy of it, which gives the report. The report is the
    one that `examine` gives of the run as it stands.

    Args:
        run: as it stands.
        rules: the rules to apply.
    """

    def __init__(self, run: Run, rules: Sequence[Rule]) -> None:
        self.run = run
        #: Of the run as it stands; while it is examined, of the run as it stood before, or None.
        self.report: Report | None = None
        self.is_pending = True
        self._rules = rules
        self._exam: Examination | None = None
        self._fed: Run | None = None
        self._fed_to: int | None = None
        self._rows: Iterator[Row] | None = None

    @property
    def share(self) -> float:
        """How much of the run has been examined, 0 to 1."""
        if not self.is_pending:
            return 1.0
        return 0.0 if self._fed_to is None else min(self._fed_to / max(self.run.last_step, 1), 1.0)

    def update(self, run: Run) -> bool:
        """Take the run as it stands now; returns whether anything in it is new."""
        if run is self.run or _same(run, self.run):
            self.run = run
            return False
        goes_on = self._fed is not None and self._fed_to is not None and _continues(run, self._fed, self._fed_to)
        if not goes_on:
            self._exam, self._fed_to = None, None
        self.run = run
        self._rows = None
        self.is_pending = True
        return True

    def advance(self, n: int) -> None:
        """Examine up to `n` rows more; the report is made when none are left."""
        if not self.is_pending:
            return
        try:
            self._advance(n)
        except Exception:
            self.is_pending = False  # or it would fail for ever
            raise

    def _advance(self, n: int) -> None:
        run = self.run
        if self._exam is None:
            self._exam = Examination(self._rules, settings=run.settings, notes=run.notes)
        if self._rows is None:
            self._rows = (run if self._fed_to is None else run.after(self._fed_to)).rows()
            self._fed = run
        last = run.last_step
        for _ in range(n):
            row = next(self._rows, None)
            if row is None or row.step >= last:
                self._close(() if row is None else (row, *self._rows))
                return
            self._exam.feed(row)
            self._fed_to = row.step

    def _close(self, rows: Sequence[Row]) -> None:
        assert self._exam is not None
        # Notes are read by rules only when they close, and a reader's notes change while the log grows.
        self._exam.curves.notes = self.run.notes
        exam = copy.deepcopy(self._exam)
        for row in rows:
            exam.feed(row)
        self.report = exam.report(self.run.id, self.run.source)
        self._rows = None
        self.is_pending = False


def _same(a: Run, b: Run) -> bool:
    same = (a.id, a.source, a.notes, dict(a.settings)) == (b.id, b.source, b.notes, dict(b.settings))
    return same and _same_points(a, b)


def _equal(a: Series, b: Series) -> bool:
    return np.array_equal(a.step, b.step) and np.array_equal(a.value, b.value, equal_nan=True)


def _continues(run: Run, fed: Run, fed_to: int) -> bool:
    """Whether a run is, up to a step, the one that was examined up to there."""
    return dict(run.settings) == dict(fed.settings) and _same_points(run.until(fed_to), fed.until(fed_to))


def _same_points(a: Run, b: Run) -> bool:
    return a.series.keys() == b.series.keys() and all(_equal(a.series[name], b.series[name]) for name in a.series)
