"""The types refuse what would make a later stage wrong."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from diagnose.model import Change, Evidence, Finding, Note, Prescription, Row, Run, Series, Severity
from diagnose.rows import build_run


def series(steps, values=None):
    at = np.asarray(steps, dtype=np.int64)
    return Series("train/loss", at, np.asarray(values or [1.0] * len(steps)), np.ones_like(at))


def test_series_needs_one_length():
    at = np.arange(3)
    with pytest.raises(ValueError, match=r"train/loss.*one length.*\(3,\), \(2,\)"):
        Series("train/loss", at, np.ones(2), at)
    with pytest.raises(ValueError, match="one length"):
        Series("train/loss", at.reshape(1, 3), np.ones((1, 3)), at.reshape(1, 3))


@pytest.mark.parametrize("steps", [[1, 1], [2, 1], [1, 3, 2]])
def test_series_steps_strictly_increase(steps):
    with pytest.raises(ValueError, match="train/loss: steps must strictly increase"):
        series(steps)


def test_series_may_be_empty_or_hold_nan():
    assert len(series([])) == 0
    assert len(series([5], [math.nan])) == 1


@pytest.mark.parametrize(
    ("value", "relation", "limit", "holds"),
    [
        (1.0, "<", 2.0, True),
        (2.0, "<", 2.0, False),
        (2.0, "<=", 2.0, True),
        (3.0, ">", 2.0, True),
        (2.0, ">", 2.0, False),
        (2.0, ">=", 2.0, True),
        (2.0, "==", 2.0, True),
        (2.1, "==", 2.0, False),
        (math.nan, ">", 2.0, False),
        (math.nan, "<=", 2.0, False),
        (math.nan, "is not finite", None, True),
        (math.inf, "is not finite", None, True),
        (1.0, "is not finite", None, False),
        (1.0, "is finite", None, True),
        (math.nan, "is finite", None, False),
        (1.0, ">", None, False),
    ],
)
def test_evidence_holds(value, relation, limit, holds):
    assert Evidence("x", value, relation, limit).holds() is holds


def test_prescription_changes_at_most_two_settings():
    change = Change("learning_rate", 3e-4, 1e-4, 1 / 3)
    assert len(Prescription((change, change), "a", "b").changes) == 2
    with pytest.raises(ValueError, match="at most two settings, got 3"):
        Prescription((change,) * 3, "a", "b")


def test_finding_key_survives_growth():
    found = Finding("CD101", "nan-loss", Severity.WARNING, "train/loss", 10, 10, "m", ())
    grown = dataclasses.replace(found, last_step=90, severity=Severity.ERROR, message="other")
    assert grown.key == found.key == ("CD101", "train/loss", 10)


def test_severity_ranks():
    assert sorted(Severity, key=lambda s: s.rank) == [Severity.INFO, Severity.WARNING, Severity.ERROR]


def run():
    rows = [
        Row(10, {"train/loss": 2.0}, 0.1),
        Row(20, {"train/loss": 1.5, "eval/loss": 1.6}, 0.2),
        Row(30, {"train/loss": 1.2}),
    ]
    return build_run(rows, id="r", source="s", settings={"lr": 1}, notes=[Note("a", "always"), Note("b", "late", 25)])


def test_run_until_a_step_is_the_run_as_it_stood():
    cut = run().until(20)
    assert cut.last_step == 20
    assert list(cut.rows()) == list(run().rows())[:2]
    assert [n.kind for n in cut.notes] == ["a"]
    assert cut.settings == run().settings
    assert list(run().until(15).series) == ["train/loss", "epoch"]
    assert not run().until(5).series


def test_run_last_step():
    assert run().last_step == 30
    assert Run("r", "s", {}).last_step == 0
    assert not list(Run("r", "s", {}).rows())


def test_types_are_frozen():
    for thing, field in ((run(), "id"), (series([1]), "name"), (Evidence("x", 1.0, ">", 0.0), "value")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, field, "other")
