"""The rate to try next, from the tries so far."""

import math

import pytest

from diagnose.model import LearningRateVerdict, RateDirection
from diagnose.next_rate import Try, next_rate


def verdict(direction: str, factor: float | None = None, **chances: float) -> LearningRateVerdict:
    return LearningRateVerdict(RateDirection(direction), factor, None, None, 0.5, (), "said so", chances)


HOLD, UP, DOWN = verdict("hold"), verdict("up", 3.0), verdict("down", 3.0)


def tries(*told: tuple[float, float, LearningRateVerdict]) -> list[Try]:
    return [Try(rate, 3.0, loss, found) for rate, loss, found in told]


def rate_after(*told: tuple[float, float, LearningRateVerdict]) -> float | None:
    found = next_rate(tries(*told))
    return None if found is None else found.rate


def test_a_first_verdict_is_followed():
    assert rate_after((1e-4, 2.5, UP)) == 3e-4
    assert rate_after((1e-4, 2.5, DOWN)) == 3.3e-5
    assert rate_after((9e-4, math.nan, verdict("down", 9.0))) == 1e-4
    assert rate_after((1e-4, 2.5, HOLD)) is None


def test_a_verdict_that_knows_the_method_s_range_is_taken_at_its_word():
    held = LearningRateVerdict(RateDirection.UP, 3.0, 3e-4, 5e-4, 0.9, (), "held at the high end")
    assert rate_after((3e-4, 2.5, held)) == 5e-4


def test_an_unsure_first_verdict_gets_one_try_towards_the_likelier_side():
    assert rate_after((1e-4, 2.5, verdict("hold", up=0.3, hold=0.6, down=0.1))) == 3e-4
    assert rate_after((1e-4, 2.5, verdict("unknown", up=0.3, hold=0.3, down=0.4))) == 3.3e-5
    assert rate_after((1e-4, 2.5, verdict("hold", up=0.1, hold=0.8, down=0.1))) is None


def test_what_a_step_gained_is_measured_and_outweighs_a_hold():
    assert rate_after((1e-4, 2.5, UP), (3e-4, 2.0, HOLD)) == 9e-4
    assert rate_after((9e-4, 2.5, DOWN), (3e-4, 2.0, HOLD)) == 1e-4
    assert rate_after((1e-4, 2.05, UP), (3e-4, 2.0, HOLD)) is None


def test_a_try_that_made_it_worse_is_not_gone_beyond():
    assert rate_after((1e-4, 2.0, UP), (3e-4, 2.5, UP)) is None
    assert rate_after((1e-4, 2.0, UP), (3e-4, math.inf, DOWN)) is None


def test_a_jump_of_nine_leaves_the_rate_between():
    assert rate_after((9e-4, math.nan, verdict("down", 9.0)), (1e-4, 2.0, UP)) == 3e-4


def test_no_rate_is_tried_twice():
    assert rate_after((1e-4, 2.5, UP), (3e-4, 2.0, DOWN)) is None


def test_limits_hold_what_the_measured_gain_suggests():
    told = tries((1e-4, 2.5, UP), (3e-4, 2.0, HOLD))
    assert next_rate(told, (1e-5, 1e-3)) is not None
    assert next_rate(told, (1e-5, 5e-4)) is None


def test_no_try_is_an_error():
    with pytest.raises(ValueError, match="no try"):
        next_rate([])
