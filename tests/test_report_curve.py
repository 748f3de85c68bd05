import dataclasses
import math
import sys

import numpy as np
import pytest
import sample_reports as samples

from diagnose.model import Kind, Report, Run
from diagnose.report.curve import Plot, draw
from diagnose.report.scale import scale_for, spread_ticks


def drawn(run: Run, report: Report = samples.INCONCLUSIVE, **options: object) -> Plot:
    plot = draw(report, run, **({"width": 60, "height": 10} | options))
    assert plot is not None
    return plot


def lines(plot: Plot) -> list[str]:
    return ["".join(glyph for glyph, _ in cells) for cells in plot.lines]


def rows_with(plot: Plot, role: str) -> list[int]:
    return [y for y, cells in enumerate(plot.lines) if any(r == role for _, r in cells)]


def test_a_falling_line_goes_from_the_top_left_to_the_bottom_right() -> None:
    plot = drawn(samples.run("x", train_loss=(range(100), np.linspace(3, 1, 100))))
    columns = [[x for x, (_, role) in enumerate(cells) if role == "train"] for cells in plot.lines[:10]]
    assert all(columns)
    assert [min(c) for c in columns] == sorted(min(c) for c in columns)
    assert all(sum(role == "train" for _, role in cells) < 12 for cells in plot.lines[:10])


def test_one_spike_among_a_million_points_is_drawn() -> None:
    values = np.ones(1_000_000)
    values[567_890] = 2.0
    run = samples.run("x", train_loss=(range(values.size), values))
    assert rows_with(drawn(run), "train") == list(range(10))


def test_a_value_that_is_not_finite_breaks_the_line_and_is_crossed_out() -> None:
    values = [1.0] * 20 + [math.nan] * 20 + [1.0] * 20
    plot = drawn(samples.run("x", train_loss=(range(60), values)))
    row = next(cells for cells in plot.lines if any(role == "train" for _, role in cells))
    kinds = "".join("t" if role == "train" else "." for _, role in row)
    assert "t..." in kinds
    assert "...t" in kinds
    assert sum(role == "nan" for cells in plot.lines for _, role in cells) in (19, 20)
    assert ("x", "nan", "not a finite number") in plot.legend


def test_marks_stand_below_their_steps() -> None:
    plot = drawn(samples.SICK_RUN, samples.SICK)
    width = len(plot.lines[0])
    marks = {
        glyph: x for cells in plot.lines[-1:] for x, (glyph, role) in enumerate(cells) if role in ("best", "stop", "error")
    }
    # the first cell of the marks' line stands for the whole margin, as does that of the others
    assert set(marks) == {"◆", "■", "A"}
    assert marks["◆"] < marks["A"] < marks["■"] < width
    guides = [x for x, (glyph, role) in enumerate(plot.lines[0]) if role == "best"]
    assert len(guides) == 1


def test_marks_of_one_step_get_a_row_each() -> None:
    findings = tuple(dataclasses.replace(samples.MEMORIZATION, name=f"n{i}", code=f"CD90{i}", first_step=300) for i in range(5))
    report = dataclasses.replace(samples.SICK, findings=findings)
    plot = drawn(samples.SICK_RUN, report)
    below = ["".join(g for g, role in cells if role in ("best", "error")) for cells in plot.lines[12:]]
    assert below == ["◆", "A", "B"]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [0.0, 0.0],
        [math.nan, math.nan],
        [math.inf, -math.inf, 1.0],
        [sys.float_info.max, -sys.float_info.max, 0.0],
        [5e-324, 1e-323, 0.0],
        [1e300, 1e-300],
        [-3.0, 5.0, 1e9],
        [1e16, 1e16 + 2],
    ],
)
@pytest.mark.parametrize("is_ascii", [False, True])
def test_any_values_are_drawn_without_a_crash(values: list[float], is_ascii: bool) -> None:
    run = samples.run("x", train_loss=(range(len(values)), values))
    plot = draw(samples.INCONCLUSIVE, run, width=60, is_ascii=is_ascii)
    assert (plot is None) == (not values)
    if plot is not None:
        assert all(len(line) <= 60 for line in lines(plot))
        assert not is_ascii or "".join(lines(plot)).isascii()


@pytest.mark.parametrize("width", [1, 5, 12])
def test_any_width_is_drawn_without_a_crash(width: int) -> None:
    assert lines(drawn(samples.SICK_RUN, samples.SICK, width=width))


def test_the_reward_is_drawn_for_reinforcement_learning() -> None:
    run = samples.run("x", train_loss=(range(9), [0.0] * 9), train_reward=(range(9), range(9)))
    report = dataclasses.replace(samples.INCONCLUSIVE, kind=Kind.RL)
    assert drawn(run, report).legend[0][2] == "train/reward"


def test_the_scale_is_logarithmic_where_the_range_asks_for_it() -> None:
    falling = np.geomspace(0.01, 3.0, 50)
    assert not scale_for([np.linspace(1.0, 3.0, 50)]).is_log
    assert scale_for([falling]).is_log
    assert scale_for([np.array([10.0] + [1.0] * 50)]).is_log
    assert not scale_for([np.array([100.0, -1.0, 1.0])]).is_log
    # an evaluation loss that rises while the training loss falls: its course is what matters
    assert not scale_for([falling, np.linspace(1.0, 2.0, 10)]).is_log


def test_ticks_stand_where_their_values_are() -> None:
    scale = scale_for([np.array([0.0, 10.0])])
    ticks = scale.ticks(21)
    assert {row: float(text) for row, text in ticks.items()} == {0: 10, 4: 8, 8: 6, 12: 4, 16: 2, 20: 0}


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-5.0, 5.0), (1e-9, 3e-9), (1e12, 1e12 + 7)])
def test_round_ticks_lie_within_the_range(low: float, high: float) -> None:
    ticks = spread_ticks(low, high, 4)
    assert 2 <= len(ticks) <= 6
    assert all(low <= t <= high * (1 + 1e-9) for t in ticks)
