"""The learning rate to try next, from the tries so far: one run's verdict, corrected by what its neighbours turned out to be.

One run alone tells the way to go and is sometimes wrong by a factor of 3 near the best rate. A second run settles much of that:
what a factor of 3 has just gained is measured, no longer foretold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.model import LearningRateVerdict, RateDirection
from diagnose.prescribe import FACTOR
from diagnose.rate_sweep import MARGIN

#: A direction at least this likely is worth one try where nothing was tried yet and the verdict is no certain one. With it and
#: MARGIN, the best of the runs tried is good for 9 of 10 starts of the recorded sweeps (`tests/benchmarks/treatment.py`).
_WORTH_A_TRY = 0.2
#: Rates nearer than this are the same try.
_SAME = math.sqrt(FACTOR) / 1.05


@dataclass(frozen=True, slots=True)
class Try:
    """One run, of several that differ in nothing but the learning rate.

    Args:
        rate: its peak learning rate.
        first: its first loss.
        loss: the evaluation loss of the checkpoint that would be kept; NaN or inf where there is none.
        verdict: on its learning rate.
    """

    rate: float
    first: float
    loss: float
    verdict: LearningRateVerdict


@dataclass(frozen=True, slots=True)
class NextRate:
    """The rate to try next, and why."""

    rate: float
    why: str


def next_rate(tries: Sequence[Try], limits: tuple[float, float] = (0.0, math.inf)) -> NextRate | None:
    """The learning rate to try next.

    The verdict on the best try so far leads. Where it says hold or is unknown: on in the direction of the last step, if that
    gained more than a tenth of all progress; and from a first try towards the likelier side, if it is likely enough. No rate is
    tried twice, and none beyond a try that was worse.

    Args:
        tries: at least one, in the order in which they were made.
        limits: lowest and highest rate to try; a verdict's own rate is inside its method's range already.

    Returns:
        None where the best try should be kept.

    Raises:
        ValueError: no try.

    Examples:
        >>> from diagnose.model import LearningRateVerdict, RateDirection
        >>> up = LearningRateVerdict(RateDirection.UP, 3.0, 1e-4, 3e-4, 0.9, (), "")
        >>> hold = LearningRateVerdict(RateDirection.HOLD, None, 3e-4, None, 0.6, (), "")
        >>> next_rate([Try(1e-4, 3.0, 2.5, up)]).rate
        0.0003
        >>> next_rate([Try(1e-4, 3.0, 2.5, up), Try(3e-4, 3.0, 2.0, hold)]).rate
        0.0009
        >>> next_rate([Try(1e-4, 3.0, 2.5, up), Try(3e-4, 3.0, 2.49, hold)]) is None
        True
    """
    if not tries:
        raise ValueError("no try given; the next rate needs at least one")
    best = min(tries, key=lambda t: t.loss if math.isfinite(t.loss) else math.inf)
    target, why = _wanted(tries, best)
    if target is None:
        return None
    rate = _between(target, best.rate, [t.rate for t in tries])
    if rate is None or not limits[0] <= rate <= limits[1]:
        return None
    return NextRate(float(f"{rate:.2g}"), why)


def _wanted(tries: Sequence[Try], best: Try) -> tuple[float | None, str]:
    verdict = best.verdict
    if verdict.direction in (RateDirection.UP, RateDirection.DOWN):
        way = 1 if verdict.direction is RateDirection.UP else -1
        return verdict.after or best.rate * (verdict.factor or FACTOR) ** way, verdict.reason
    if len(tries) == 1:
        up, down = (verdict.chances.get(d.value, 0.0) for d in (RateDirection.UP, RateDirection.DOWN))
        if max(up, down) < _WORTH_A_TRY:
            return None, ""
        word, factor = ("up", FACTOR) if up > down else ("down", 1 / FACTOR)
        return best.rate * factor, f"this run alone does not settle it ({word} {max(up, down):.0%}): one try tells"
    last = tries[-2]
    if best is not tries[-1] or last.rate == best.rate:
        return None, ""
    gain = (last.loss if math.isfinite(last.loss) else math.inf) - best.loss
    if not gain > MARGIN * (best.first - best.loss):
        return None, ""
    word = "raised" if best.rate > last.rate else "lowered"
    factor = FACTOR if best.rate > last.rate else 1 / FACTOR
    return best.rate * factor, f"the rate was {word} and the loss fell from {last.loss:.4g} to {best.loss:.4g}: go on"


def _between(target: float, start: float, tried: Sequence[float]) -> float | None:
    """The target, or what is left on this side of a rate already tried; None where that is nothing new."""
    if target > start:
        target = min([target, *(rate / FACTOR for rate in tried if rate > start)])
    else:
        target = max([target, *(rate * FACTOR for rate in tried if rate < start)])
    is_new = all(max(target / rate, rate / target) > _SAME for rate in tried)
    return target if is_new else None
