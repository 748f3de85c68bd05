"""Fewer points, the same picture; and where a step lies on each axis."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.model import Run, Series
from diagnose.tensorboard.axes import Axis, axes_of, place_on
from diagnose.tensorboard.curve import Window, curve
from diagnose.tensorboard.decimate import decimate, smoothed, stretches

values = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])


@given(st.lists(values, min_size=1, max_size=200), st.integers(1, 12))
def test_no_extreme_no_end_and_no_gap_of_a_column_is_lost(y: list[float], columns: int) -> None:
    x, ys = np.arange(len(y), dtype=float), np.asarray(y)
    kept = set(decimate(x, ys, columns).tolist())
    if len(y) <= columns:
        assert kept == set(range(len(y)))
        return
    # the obvious way: sort the points into columns and look at each
    width = len(y) - 1
    for c in range(columns):
        own = [i for i in range(len(y)) if min(int(i / width * columns), columns - 1) == c]
        if not own:
            continue
        drawn = [i for i in own if i in kept]
        finite = [y[i] for i in own if math.isfinite(y[i])]
        bad = [i for i in own if not math.isfinite(y[i])]
        assert {own[0], own[-1]} <= kept
        assert len(drawn) <= 6
        if finite:
            seen = [y[i] for i in drawn if math.isfinite(y[i])]
            assert (min(seen), max(seen)) == (min(finite), max(finite))
        if bad:
            assert {bad[0], bad[-1]} <= kept


def test_a_single_spike_and_a_single_nan_of_a_long_run_are_drawn() -> None:
    n = 100_000
    y = np.ones(n)
    y[12_345], y[67_890] = 50.0, math.nan
    step = np.arange(1, n + 1)
    told = curve(run_of(step, y), None, Window(columns=800))
    loss = told["panels"][0]["series"][0]
    assert loss["n"] == n
    assert loss["n_drawn"] < 800 * 6
    assert loss["y"][loss["step"].index(12_346)] == 50.0
    assert loss["y"][loss["step"].index(67_891)] is None
    assert [(g["first_step"], g["last_step"], g["n"], g["what"]) for g in loss["gaps"]] == [(67_891, 67_891, 1, "NaN")]


def test_thousands_of_stretches_are_told_as_fewer_that_cover_them() -> None:
    y = np.ones(5000)
    y[1::2] = math.nan
    gaps = curve(run_of(np.arange(1, 5001), y), None, Window())["panels"][0]["series"][0]["gaps"]
    assert len(gaps) <= 300
    assert (gaps[0]["first_step"], gaps[-1]["last_step"]) == (2, 5000)
    assert sum(gap["n"] for gap in gaps) == 2500
    assert len(stretches(y)) == 2500


def test_a_window_has_all_its_points_and_one_on_either_side() -> None:
    n = 50_000
    told = curve(run_of(np.arange(n), np.arange(n, dtype=float)), None, Window(low=1000, high=1100, columns=500))
    loss = told["panels"][0]["series"][0]
    assert loss["step"] == list(range(999, 1102))
    assert not told["is_whole"]


def run_of(step, value, **series) -> Run:
    made = {"train/loss": value, **series}
    made = {
        name: Series(name, np.asarray(step), np.asarray(v, dtype=float), np.ones(len(step), int)) for name, v in made.items()
    }
    return Run("run", "run", made)


def test_smoothing_is_tensorboards_and_leaves_gaps() -> None:
    y = np.asarray([4.0, 2.0, math.nan, 1.0])
    last, out = 0.0, []
    for n, v in enumerate([4.0, 2.0, 1.0], 1):  # the debiased average, as TensorBoard documents it
        last = 0.6 * last + 0.4 * v
        out.append(last / (1 - 0.6**n))
    got = smoothed(y, 0.6)
    assert got[[0, 1, 3]] == pytest.approx(out)
    assert math.isnan(got[2])
    assert smoothed(y, 0.0) is y


def test_rounded_epochs_never_put_two_steps_at_one_place() -> None:
    step = np.arange(10, 110, 10)
    run = run_of(step, np.ones(10), epoch=[0.0, 0.0, 0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.3])
    place = place_on(run, Axis.EPOCH)
    assert place is not None
    x = place(step)
    assert bool((np.diff(x) > 0).all())
    assert x[[0, 2, 5, 7]] == pytest.approx([0.0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize("epochs", [[math.nan] * 3, [1.0, 1.0, 1.0], [0.0, math.nan, math.nan]])
def test_an_axis_that_the_log_does_not_tell_is_not_offered(epochs: list[float]) -> None:
    run = run_of([1, 2, 3], [1.0, 1.0, 1.0], epoch=epochs)
    assert axes_of(run) == [Axis.STEP]
    told = curve(run, None, Window(axis=Axis.TIME))
    assert (told["axis"], told["axes"]) == ("step", ["step"])


def test_time_begins_with_the_first_log() -> None:
    run = run_of([1, 2, 3], [1.0, 1.0, 1.0])
    clock = Series("clock", np.asarray([1, 2, 3]), np.asarray([1e9, 1e9 + 5, 1e9 + 20]), np.ones(3, int))
    told = curve(Run(run.id, run.source, run.series, clock=clock), None, Window(axis=Axis.TIME))
    assert told["panels"][0]["series"][0]["x"] == [0.0, 5.0, 20.0]
    assert told["range"] == [0.0, 20.0]


def test_a_run_without_a_loss_gives_an_empty_panel() -> None:
    run = Run("run", "run", {"train/accuracy": Series("train/accuracy", np.asarray([1]), np.asarray([0.5]), np.ones(1, int))})
    assert curve(run, None, Window())["panels"][0]["series"] == []
