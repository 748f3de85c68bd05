"""A run that is written in any format and read again is the run that was."""

from __future__ import annotations

import json
import math

import numpy as np
from event_files import scalar, write_events
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diagnose.model import Row, Run
from diagnose.readers import read
from diagnose.rows import build_run, run_of_columns

# A ratio of whole numbers, so that 32 bits of an event file hold it exactly.
numbers = st.integers(-(2**20), 2**20).map(lambda n: n / 64) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, float]]:
    """Rows of a training as the Trainer writes them: train and evaluation rows, steps that increase."""
    step, rows = 0, []
    for _ in range(draw(st.integers(1, 12))):
        step += draw(st.integers(1, 500))
        row: dict[str, float] = {"loss": draw(numbers)}
        if draw(st.booleans()):
            row |= {"grad_norm": draw(numbers), "learning_rate": draw(numbers)}
        if draw(st.booleans()):
            row = {"eval_loss": draw(numbers), "eval_wer": draw(numbers)}
        rows.append(row | {"epoch": step / 64, "step": step})
    return rows


def expected(rows: list[dict[str, float]]) -> Run:
    names = {
        "loss": "train/loss",
        "grad_norm": "train/grad_norm",
        "learning_rate": "train/lr",
        "eval_loss": "eval/loss",
        "eval_wer": "eval/wer",
    }
    return build_run(
        [Row(int(r["step"]), {names[k]: v for k, v in r.items() if k in names}, r["epoch"]) for r in rows],
        id="log",
        source="log",
    )


def same(a: Run, b: Run) -> bool:
    return a.series.keys() == b.series.keys() and all(
        np.array_equal(a.series[name].step, b.series[name].step)
        and np.array_equal(a.series[name].value, b.series[name].value, equal_nan=True)
        and np.array_equal(a.series[name].span, b.series[name].span)
        for name in a.series
    )


SETTINGS = settings(
    max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SETTINGS
@given(rows=logs())
def test_every_format_gives_the_same_run(tmp_path, rows):
    columns = ["epoch", "loss", "eval_loss", "eval_wer", "grad_norm", "learning_rate", "step"]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 1, "log_history": rows}))
    (tmp_path / "trainer_log.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    cells = [",".join(repr(row[c]) if c in row else "" for c in columns) for row in rows]
    (tmp_path / "metrics.csv").write_text("\n".join([",".join(columns), *cells]))
    want = expected(rows)
    for name in ("trainer_state.json", "trainer_log.jsonl", "metrics.csv"):
        (run,) = read(tmp_path / name)
        assert same(run, want), name
        assert run.notes == ()


@SETTINGS
@given(rows=logs())
def test_event_files_give_the_same_run(tmp_path, rows):
    tags = {"loss": "train/loss", "eval_loss": "eval/loss", "eval_wer": "eval/wer", "epoch": "train/epoch"}
    tags |= {"grad_norm": "train/grad_norm", "learning_rate": "train/learning_rate"}
    events = [scalar(tags[k], int(row["step"]), v, i) for i, row in enumerate(rows) for k, v in row.items() if k in tags]
    (run,) = read(write_events(tmp_path, events))
    assert same(run, expected(rows))


@SETTINGS
@given(
    steps=st.lists(st.integers(-5, 40), min_size=1, max_size=20).map(sorted), values=st.lists(numbers, min_size=20, max_size=20)
)
def test_columns_and_rows_build_the_same_run(steps, values):
    rows = [Row(step, {"train/loss": value}) for step, value in zip(steps, values, strict=False)]
    by_column = run_of_columns({"train/loss": (steps, values[: len(steps)])}, id="a", source="a")
    assert same(by_column, build_run(rows, id="a", source="a"))


def test_a_metric_that_a_resume_cut_off_whole_can_come_back():
    rows = [Row(10, {"train/loss": 2.0, "train/grad_norm": 1.0}), Row(5, {"train/loss": 3.0}), Row(4, {"train/grad_norm": 7.0})]
    run = build_run(rows, id="a", source="a")
    assert run.series["train/loss"].step.tolist() == [5]
    assert run.series["train/grad_norm"].step.tolist() == [4]
    assert "train/grad_norm" not in build_run(rows[:2], id="a", source="a").series
