"""The verdict on the learning rate: up, down, hold or unknown, from one run.

An open finding whose cure moves the rate decides; there is never a second opinion. Otherwise a small logistic regression,
fitted to recorded sweeps whose truth is known (`fixtures/fit_rate.py`), weighs the features of `rate_features`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from diagnose import prescribe, rate_weights
from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Finding, Kind, LearningRateVerdict, Prescription, RateDirection, Severity, Status
from diagnose.rate_course import RateCourse
from diagnose.rate_features import GRADIENT_FEATURES, LOSS_FEATURES, rate_features

#: The classes of the regression, in the order of its columns.
DIRECTIONS = ("up", "hold", "down")
#: Fewest logged losses: a few dozen.
LEAST_POINTS = 24
#: A direction less likely than this is no advice; nor is one whose opposite is likelier than the second.
_SURE, _OPPOSITE = 0.4, 0.25
#: Standard deviations of a feature up to which the recorded sweeps reach.
REACH = 3.0
#: What an open finding's cure is worth: its rule has been held against labelled curves.
_FOUND = 0.95
#: And that of a memorization: a lower rate only delays it.
_HELD = 0.75
#: Troubles under which the course of the loss says nothing about the rate.
_BLIND = ("zero-loss", "zero-learning-rate", "no-gradient", "nan-loss", "hidden-nan")
#: What is told of the features: name, words, limit, and whether it is a ratio whose logarithm the feature is.
_TOLD = (
    ("gain", "gain at three times the rate, by the course so far, as a share of all progress", 0.1, False),
    ("annealing", "gain of the decay beyond that course, as a share of all progress", 0.08, False),
    ("peak", "early peak of the loss over its first value", 1.25, True),
    ("gradient_mid", "gradient norm in mid-run over its first", 0.2, True),
)


def probabilities(
    features: Mapping[str, float],
    names: Sequence[str],
    mean: Sequence[float],
    scale: Sequence[float],
    weights: Sequence[Sequence[float]],
) -> tuple[float, ...]:
    """Chance of each of DIRECTIONS: softmax of a linear form of the standardized features and their squares.

    The squares let a feature speak for `hold` in the middle of its range and for the others at either end.

    Args:
        features: by name.
        names: which of them, in the order of the weights.
        mean: of each feature where it was fitted.
        scale: its standard deviation there.
        weights: a row a feature, a row a square, and a last one of constants; a column a direction.
    """
    # Beyond the recorded sweeps the line is not known to go on.
    z = [max(-REACH, min(REACH, (features[n] - m) / s)) for n, m, s in zip(names, mean, scale, strict=True)]
    terms = [*z, *(v * v for v in z), 1.0]
    scores = [sum(w[k] * v for w, v in zip(weights, terms, strict=True)) for k in range(len(DIRECTIONS))]
    top = max(scores)
    powers = [math.exp(s - top) for s in scores]
    return tuple(p / sum(powers) for p in powers)


def rate_verdict(course: RateCourse, curves: Curves, findings: Sequence[Finding]) -> LearningRateVerdict:
    """Which way the learning rate should go, by what was found and by the course of the loss.

    Args:
        course: loss against summed learning rate.
        curves: the run so far.
        findings: of the run.

    Returns:
        UNKNOWN, with the reason, for reinforcement learning, too few logs, a run still in its warm-up, a rate that is not
        known, and signs that disagree.
    """
    if curves.kind is Kind.RL:
        return _unknown(curves, "the loss is not the signal in reinforcement learning")
    cause = prescribe.cause(findings)
    cured = None if cause is None or cause.prescription is None else _rate_change(cause.prescription)
    if cause is not None and cured is not None and (cured.factor or 1.0) < 1.0:
        assert cause.prescription is not None  # it has a change
        return _found(cured, cause, curves)
    if cause is not None and cause.name == "memorization":
        why = "the evaluation loss rises for want of data, not of rate: fewer epochs or more data are the cure"
        return _made(RateDirection.HOLD, None, curves, _HELD, cause.evidence, why)
    if cause is not None and cause.prescription is not None and prescribe.NOT_THE_RATE in cause.prescription.do_not:
        return _unknown(curves, f"{cause.name} has another cause than the rate; look again once it is mended")
    blind = next((f.name for f in findings if f.name in _BLIND and f.status is Status.OPEN), None)
    if blind is not None:
        return _unknown(curves, f"{blind} has another cause than the rate")
    train = curves.train
    if train is None or train.n < LEAST_POINTS:
        return _unknown(curves, f"{0 if train is None else train.n} logged losses are too few; {LEAST_POINTS} are needed")
    if curves.is_warming_up:
        return _unknown(curves, "the run is still in its warm-up")
    if train.goes_negative:
        return _unknown(curves, "the loss goes below 0, so it is no likelihood")
    features = rate_features(course, curves)
    if features is None:
        return _unknown(curves, "no learning rate is logged or configured")
    return _weighed(features, curves)


def _weighed(features: Mapping[str, float], curves: Curves) -> LearningRateVerdict:
    names: tuple[str, ...]
    made: tuple[Sequence[float], Sequence[float], Sequence[Sequence[float]]]
    if GRADIENT_FEATURES[0] in features:
        names = LOSS_FEATURES + GRADIENT_FEATURES
        made = (rate_weights.WITH_GRADIENT_MEAN, rate_weights.WITH_GRADIENT_SCALE, rate_weights.WITH_GRADIENT_WEIGHTS)
    else:
        names = LOSS_FEATURES
        made = (rate_weights.WITHOUT_GRADIENT_MEAN, rate_weights.WITHOUT_GRADIENT_SCALE, rate_weights.WITHOUT_GRADIENT_WEIGHTS)
    chances = dict(zip(DIRECTIONS, probabilities(features, names, *made), strict=True))
    best = max(chances, key=lambda d: chances[d])
    opposite = {"up": "down", "down": "up", "hold": "hold"}[best]
    evidence = tuple(_told(features, curves.last_step))
    if chances[best] < _SURE or (opposite != best and chances[opposite] > _OPPOSITE):
        said = ", ".join(f"{d} {chances[d]:.0%}" for d in DIRECTIONS)
        unsure = _unknown(curves, f"the signs disagree ({said})", evidence)
        return dataclasses.replace(unsure, chances=_rounded(chances))
    return dataclasses.replace(_advised(best, features, curves, chances[best], evidence), chances=_rounded(chances))


def _advised(
    best: str, features: Mapping[str, float], curves: Curves, chance: float, evidence: tuple[Evidence, ...]
) -> LearningRateVerdict:
    if best == "hold":
        why = "a higher rate would hardly gain, and nothing says that this one is too high"
        return _made(RateDirection.HOLD, None, curves, chance, evidence, why)
    if best == "down":
        times = 2 if features["fallen"] <= 0 else 1
        why = "the loss rose early or came to rest far above where it could go: the rate is past its edge"
        cure = prescribe.lower_rate(curves, why, times=times)
    else:
        why = "the loss is still a function of the summed learning rate: three times the rate would gain more"
        cure = prescribe.raise_rate(curves, why)
    change = _rate_change(cure)
    if change is None:
        return _made(RateDirection.HOLD, None, curves, chance, evidence, cure.advice)
    return _made(RateDirection(best), change, curves, chance, evidence, cure.why)


def _rounded(chances: Mapping[str, float]) -> dict[str, float]:
    return {direction: round(chance, 3) for direction, chance in chances.items()}


def _told(features: Mapping[str, float], step: int) -> list[Evidence]:
    found = []
    for name, words, limit, is_log in _TOLD:
        if name in features:
            value = math.exp(features[name]) if is_log else features[name]
            found.append(Evidence(words, value, ">=" if value >= limit else "<", limit, "ratio" if is_log else "share", step))
    return found


def _found(change: Change, cause: Finding, curves: Curves) -> LearningRateVerdict:
    assert cause.prescription is not None  # its change was taken from there
    sure = _FOUND if cause.severity is Severity.ERROR else 0.75
    return _made(RateDirection.DOWN, change, curves, sure, cause.evidence, cause.prescription.why)


def _made(
    direction: RateDirection,
    change: Change | None,
    curves: Curves,
    confidence: float,
    evidence: tuple[Evidence, ...],
    reason: str,
) -> LearningRateVerdict:
    rate = prescribe.known_rate(curves)
    after = change.after if change is not None and isinstance(change.after, float) else None
    factor = None
    if change is not None and change.factor is not None:
        ratio = change.factor if change.factor > 1 else 1 / change.factor
        factor = prescribe.FACTOR if ratio <= prescribe.FACTOR * 1.5 else prescribe.FACTOR**2
    before = None if rate is None else float(f"{rate:.3g}")
    return LearningRateVerdict(direction, factor, before, after, round(confidence, 3), evidence, reason)


def _unknown(curves: Curves, reason: str, evidence: tuple[Evidence, ...] = ()) -> LearningRateVerdict:
    return _made(RateDirection.UNKNOWN, None, curves, 0.0, evidence, reason)


def _rate_change(cure: Prescription) -> Change | None:
    return next((c for c in cure.changes if c.setting == "learning_rate"), None)
