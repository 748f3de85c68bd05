"""Levels of a reward: against slow oracles, and where they must stay quiet."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diagnose.curves import Track
from diagnose.levels import LEVEL_POINTS, Heights, mean, spread


def fed(values) -> tuple[Heights, Track]:
    """Heights after each of `values`."""
    heights, track = Heights(), Track("train/reward", 1)
    for i, value in enumerate(values, 1):
        track.add(i, value)
        heights.add(track)
    return heights, track


@pytest.mark.parametrize("seed", range(5))
def test_mean_and_spread_against_numpy(seed):
    values = np.random.default_rng(seed).normal(3.0, 2.0, 50).tolist()
    assert mean(values) == pytest.approx(np.mean(values), rel=1e-12)
    assert spread(values) == pytest.approx(math.sqrt(np.mean(np.square(np.diff(values))) / 2), rel=1e-12)


def test_spread_is_the_noise_and_not_the_course():
    noise = np.random.default_rng(0).normal(0.0, 0.5, 4000)
    course = np.linspace(0.0, 50.0, 4000)
    assert spread((course + noise).tolist()) == pytest.approx(0.5, rel=0.05)  # five standard errors of 4,000 differences
    assert spread([1.0]) == 0.0
    assert math.isnan(mean([]))


def test_a_fall_is_measured_from_the_best_level_in_shares_of_the_gain():
    heights, track = fed([-1.0] * 20 + [1.0] * 20 + [0.0] * 20)
    assert (heights.start, heights.best) == (-1.0, 1.0)
    assert 36 <= heights.best_step <= 40
    fall = heights.fall(track)
    assert fall is not None
    assert (fall.now, fall.drop, fall.share) == (0.0, 1.0, 0.5)


def test_no_fall_before_there_are_two_levels():
    assert fed([1.0] * (2 * LEVEL_POINTS - 1))[0].fall(fed([1.0] * (2 * LEVEL_POINTS - 1))[1]) is None


def test_noise_alone_is_no_fall_worth_telling():
    rng = np.random.default_rng(3)
    for _ in range(20):
        values = rng.choice([0.0, 2.5], 300).tolist()
        heights, track = Heights(), Track("train/reward", 1)
        for i, value in enumerate(values, 1):
            track.add(i, value)
            heights.add(track)
            fall = heights.fall(track)
            assert fall is None or fall.sigmas < 5.0


def test_a_constant_neither_falls_nor_rises():
    heights, track = fed([0.5] * 50)
    fall = heights.fall(track)
    assert fall is not None
    assert fall.drop == 0.0
    assert heights.risen(track) == 0.0
    heights, track = fed([0.0] * 20 + [1.0] * 20)
    assert heights.risen(track) > 3.0


def test_numbers_that_overflow_are_no_fall():
    heights, track = fed([1.7e308, -1.7e308] * 30)
    assert heights.fall(track) is None
