"""Rows to a Run: duplicate steps, steps that go back, and values that are no numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diagnose.model import Note, Row
from diagnose.rows import build_run, number, peak_learning_rate, row_from_log, run_of_columns


def run_of(rows, **known):
    return build_run(rows, id="r", source="test", **known)


def points(run, name):
    return list(zip(run.series[name].step.tolist(), run.series[name].value.tolist(), strict=True))


class Unreadable:
    def item(self):
        raise RuntimeError("a tensor with many elements")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (3, 3.0),
        ("1.2", 1.2),
        (" 1e-3 ", 1e-3),
        ("\u22121.5", -1.5),
        ("Infinity", math.inf),
        ("-inf", -math.inf),
        (10**400, math.inf),
        (-(10**400), -math.inf),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7.0),
        (np.array([2.0]), 2.0),
    ],
)
def test_number_reads(value, expected):
    assert number(value) == expected
    assert isinstance(number(value), float)


@pytest.mark.parametrize("value", [math.nan, "nan", "NaN", np.float64("nan")])
def test_number_reads_nan(value):
    assert math.isnan(number(value))


@pytest.mark.parametrize("value", [None, True, False, "No log", "", [1.0], {"a": 1}, np.bool_(True), np.zeros(3), Unreadable()])
def test_number_refuses(value):
    assert number(value) is None


def test_row_takes_metrics_and_leaves_clocks():
    log = {"loss": 1.5, "grad_norm": "nan", "learning_rate": 2e-4, "epoch": 0.5, "eval_runtime": 3.0, "note": "x"}
    row = row_from_log(log, 10)
    assert (row.step, row.epoch) == (10, 0.5)
    assert sorted(row.values) == ["train/grad_norm", "train/loss", "train/lr"]
    assert math.isnan(row.values["train/grad_norm"])


def test_closing_summary_is_no_point():
    assert row_from_log({"train_loss": 1.1, "train_runtime": 60.0, "total_flos": 1e15, "epoch": 3.0}, 300) is None
    # Counting input tokens puts train_runtime into every row: that alone does not make a summary.
    assert row_from_log({"loss": 1.1, "train_runtime": 60.0}, 300).values == {"train/loss": 1.1}
    assert row_from_log({"train_loss": 1.1}, 300).values == {"train/loss": 1.1}


def test_row_without_metrics_is_none():
    assert row_from_log({"epoch": 1.0, "eval_runtime": 2.0}, 5) is None
    assert row_from_log({}, 5) is None


@pytest.mark.parametrize("keys", [("train_loss_step", "train_loss_epoch"), ("train_loss_epoch", "train_loss_step")])
def test_epoch_average_yields_to_the_finer_series(keys):
    values = {"train_loss_step": 1.0, "train_loss_epoch": 9.0}
    assert row_from_log({k: values[k] for k in keys}, 1).values == {"train/loss": 1.0}
    assert row_from_log({"train_loss_epoch": 9.0}, 1).values == {"train/loss": 9.0}


def test_first_value_at_a_step_counts():
    run = run_of([Row(1, {"train/loss": 2.0}), Row(1, {"train/loss": 3.0, "train/lr": 0.1}), Row(2, {"train/loss": 1.0})])
    assert points(run, "train/loss") == [(1, 2.0), (2, 1.0)]
    assert points(run, "train/lr") == [(1, 0.1)]
    assert not run.notes


def test_resume_replaces_what_the_first_attempt_logged_beyond_it():
    first = [Row(s, {"train/loss": float(s), "train/lr": 0.1}, s / 100) for s in (10, 20, 30, 40)]
    again = [Row(s, {"train/loss": s + 0.5, "train/lr": 0.1}, s / 100) for s in (30, 40, 50)]
    run = run_of([*first, *again])
    assert points(run, "train/loss") == [(10, 10.0), (20, 20.0), (30, 30.5), (40, 40.5), (50, 50.5)]
    assert run.series["epoch"].step.tolist() == [10, 20, 30, 40, 50]
    (note,) = run.notes
    assert (note.kind, note.step) == ("steps-go-back", 30)
    assert "from 40 to 30" in note.text
    assert "4 points" in note.text


def test_late_point_of_another_metric_is_no_resume():
    run = run_of([Row(10, {"train/loss": 2.0}), Row(20, {"train/loss": 1.9}), Row(15, {"eval/loss": 2.1})])
    assert points(run, "train/loss") == [(10, 2.0), (20, 1.9)]
    assert points(run, "eval/loss") == [(15, 2.1)]
    assert not run.notes


def test_reader_notes_come_first():
    said = Note("counted-steps", "rows were counted")
    run = run_of([Row(2, {"train/loss": 1.0}), Row(1, {"train/loss": 1.0})], notes=[said])
    assert [n.kind for n in run.notes] == ["counted-steps", "steps-go-back"]


def test_span_counts_the_steps_that_a_loss_averages():
    run = run_of([Row(s, {"train/loss": 1.0, "train/lr": 0.1}) for s in (10, 20, 25)])
    assert run.series["train/loss"].span.tolist() == [10, 10, 5]
    assert run.series["train/lr"].span.tolist() == [1, 1, 1]


@pytest.mark.parametrize("first", [0, -3])
def test_span_is_at_least_one(first):
    run = run_of([Row(first, {"train/loss": 1.0}), Row(first + 1, {"train/loss": 1.0})])
    assert run.series["train/loss"].span.tolist() == [1, 1]


def test_columns_make_the_same_run_as_rows():
    steps, losses = [1, 2, 2, 5], [4.0, 3.0, 9.0, math.nan]
    rows = [Row(s, {"train/loss": v}) for s, v in zip(steps, losses, strict=True)]
    by_rows = run_of(rows, settings={"a": 1})
    by_columns = run_of_columns({"train/loss": (steps, losses)}, id="r", source="test", settings={"a": 1})
    for part in ("step", "value", "span"):
        a, b = getattr(by_rows.series["train/loss"], part), getattr(by_columns.series["train/loss"], part)
        np.testing.assert_array_equal(a, b)
    assert by_rows.settings == by_columns.settings
    assert len(run_of_columns({"train/loss": ([], [])}, id="r", source="test").series["train/loss"]) == 0


def test_rows_of_a_run_give_the_run_back():
    rows = [Row(1, {"train/loss": 2.0}, 0.1), Row(2, {"train/loss": 1.0, "eval/loss": 1.5}, 0.2), Row(3, {"eval/loss": 1.4})]
    run = run_of(rows)
    assert list(run.rows()) == rows
    again = run_of(run.rows())
    assert {n: points(again, n) for n in again.series} == {n: points(run, n) for n in run.series}


def test_peak_learning_rate():
    rows = [Row(i, {"train/lr": v}) for i, v in enumerate([0.0, 1e-4, math.nan, math.inf, 5e-5])]
    assert peak_learning_rate(run_of(rows)) == 1e-4
    assert peak_learning_rate(run_of([Row(1, {"train/lr": 0.0})])) is None
    assert peak_learning_rate(run_of([Row(1, {"train/lr": math.nan})])) is None
    assert peak_learning_rate(run_of([Row(1, {"train/loss": 1.0})])) is None
