"""Each statistic against a second, slow and obvious computation of the same thing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose import stats

quick = settings(max_examples=60, derandomize=True, deadline=None, database=None)
#: Values whose sums and differences neither overflow nor vanish: the tolerances below are for rounding alone.
numbers = st.floats(-1e6, 1e6).map(lambda v: round(v, 6))
#: Values with many ties.
grades = st.integers(-3, 3).map(float)


def lists(least: int, most: int = 40) -> st.SearchStrategy[list[float]]:
    return st.lists(numbers, min_size=least, max_size=most) | st.lists(grades, min_size=least, max_size=most)


def rising_steps(n: int, seed: int) -> list[float]:
    return [float(v) for v in np.cumsum(np.random.default_rng(seed).integers(1, 30, n))]


@quick
@given(lists(1))
def test_median_is_numpys(values: list[float]):
    assert stats.median(values) == pytest.approx(float(np.median(values)), rel=1e-12, abs=1e-9)


@quick
@given(lists(1), st.floats(0, 1))
def test_quantile_is_numpys(values: list[float], q: float):
    # Both interpolate between the same two order statistics; they differ by the rounding of one product.
    assert stats.quantile(values, q) == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-6)


@quick
@given(lists(1))
def test_quantile_ends_are_the_extremes(values: list[float]):
    assert (stats.quantile(values, 0.0), stats.quantile(values, 1.0)) == (min(values), max(values))


def test_nothing_has_no_middle_and_no_spread():
    for statistic in (stats.median, lambda v: stats.quantile(v, 0.5), stats.robust_scale):
        with pytest.raises(ValueError, match=r"no values|two values"):
            statistic([])
    with pytest.raises(ValueError, match="two values"):
        stats.robust_scale([1.0])


@quick
@given(lists(2))
def test_robust_scale_is_scipys(values: list[float]):
    expected = scipy.stats.median_abs_deviation(values, scale="normal")
    assert stats.robust_scale(values) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_robust_scale_of_normal_data_is_its_standard_deviation():
    values = np.random.default_rng(1).normal(5, 2, 20_000)
    assert stats.robust_scale(list(values)) == pytest.approx(2, rel=0.03)  # standard error of a MAD at n = 20 000 is 0.8 %


@quick
@given(lists(5), numbers, numbers)
def test_noise_scale_ignores_a_straight_trend(values: list[float], level: float, slope: float):
    plain = stats.noise_scale(values)
    tilted = stats.noise_scale([v + level + slope * i for i, v in enumerate(values)])
    # The tilt adds numbers up to 4e7 that cancel: what is left of them is a few units in the last place.
    assert plain is not None
    assert tilted == pytest.approx(plain, rel=1e-9, abs=1e-6)


@quick
@given(lists(5))
def test_noise_scale_follows_its_definition(values: list[float]):
    y = np.asarray(values)
    residual = (y[1:-1] - (y[:-2] + y[2:]) / 2) / np.sqrt(1 + 0.25 + 0.25)
    expected = float(np.median(np.abs(residual))) / scipy.stats.norm.ppf(0.75)
    assert stats.noise_scale(values) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("course", [lambda t: 0 * t, lambda t: 3 * np.exp(-4 * t), lambda t: np.sin(6 * t)])
def test_noise_scale_finds_the_noise_on_a_smooth_course(course):
    t = np.linspace(0, 1, 4000)
    values = course(t) + np.random.default_rng(2).normal(0, 0.1, t.size)
    assert stats.noise_scale(list(values)) == pytest.approx(0.1, rel=0.1)  # standard error at n = 4000: 2.2 %


@pytest.mark.parametrize("n", range(5))
def test_noise_scale_needs_five_values(n: int):
    assert stats.noise_scale([1.0] * n) is None


@quick
@given(lists(4), st.integers(0, 10**6))
def test_slope_is_theil_and_sens(values: list[float], seed: int):
    x = rising_steps(len(values), seed)
    found = stats.trend(x, values)
    assert found is not None
    if len(set(values)) > 1:
        assert found.slope == pytest.approx(scipy.stats.theilslopes(values, x).slope, rel=1e-9, abs=1e-9)
    else:
        assert found == (0.0, 0.0, 1.0)


@quick
@given(lists(4), st.integers(0, 10**6))
def test_trend_is_mann_and_kendalls(values: list[float], seed: int):
    x = rising_steps(len(values), seed)
    found = stats.trend(x, values)
    assert found is not None
    tau, p = slow_mann_kendall(values)
    assert found.tau == pytest.approx(tau, abs=1e-12)
    assert found.p == pytest.approx(p, rel=1e-9, abs=1e-12)


def slow_mann_kendall(values: list[float]) -> tuple[float, float]:
    """The test as the textbook has it: pair by pair, tie group by tie group."""
    score = sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
    n = len(values)
    variance = n * (n - 1) * (2 * n + 5)
    for v in set(values):
        t = values.count(v)
        variance -= t * (t - 1) * (2 * t + 5)
    if not variance:
        return 0.0, 1.0
    z = (score - math.copysign(1, score)) / math.sqrt(variance / 18) if score else 0.0
    return score / math.comb(n, 2), float(2 * scipy.stats.norm.sf(abs(z)))


@quick
@given(st.lists(numbers, min_size=8, max_size=40, unique=True), st.integers(0, 10**6))
def test_trend_agrees_with_scipys_rank_correlation_without_ties(values: list[float], seed: int):
    x = rising_steps(len(values), seed)
    found = stats.trend(x, values)
    known = scipy.stats.kendalltau(x, values, method="exact")
    assert found is not None
    assert found.tau == pytest.approx(known.statistic, abs=1e-12)
    assert found.p == pytest.approx(known.pvalue, abs=0.02)  # normal against exact: they differ most at n = 8, by 0.012


@quick
@given(lists(4))
def test_trend_turns_with_its_data(values: list[float]):
    x = [float(i) for i in range(len(values))]
    up, down = stats.trend(x, values), stats.trend(x, [-v for v in values])
    assert up is not None
    assert down is not None
    assert (down.slope, down.tau, down.p) == (-up.slope, -up.tau, up.p)


@pytest.mark.parametrize("n", range(4))
def test_trend_needs_four_points(n: int):
    assert stats.trend(list(range(n)), [1.0] * n) is None


def test_trend_in_noise_is_found_as_often_as_its_p_says():
    rng = np.random.default_rng(3)
    x = list(range(30))
    found = [stats.trend(x, list(rng.normal(size=30))) for _ in range(1000)]
    share = sum(t is not None and t.p < 0.05 for t in found) / 1000
    assert 0.03 < share < 0.07  # 0.05 with three standard errors of 0.007
