"""What the tests of the readers look at: the one run of a log, the points of a metric, the kinds of its notes."""

from __future__ import annotations

from pathlib import Path

from diagnose.model import Run
from diagnose.readers import read


def one(path: Path) -> Run:
    """The run of a log that holds exactly one."""
    runs = read(path)
    assert len(runs) == 1
    return runs[0]


def points(run: Run, name: str) -> list[tuple[int, float]]:
    """The (step, value) pairs of a metric."""
    series = run.series[name]
    return list(zip(series.step.tolist(), series.value.tolist(), strict=True))


def kinds(run: Run) -> list[str]:
    """The kinds of a run's notes, in order."""
    return [note.kind for note in run.notes]
