"""Findings and settings to a Prescription: factor-of-3 changes, at most two at once.

The factor is 3 and never 10: large jumps hide the real problem. Twice 3 is for a run that climbed past its own start.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from diagnose.model import Change, Finding, LearningRateVerdict, Prescription, RateDirection, Setting, Severity, Status

if TYPE_CHECKING:
    from diagnose.curves import Curves

#: One step of the learning rate.
FACTOR = 3.0
#: Usual learning rates by method; below and above, a change of the rate is seldom the cure.
RANGES: dict[str, tuple[float, float]] = {"lora": (1e-4, 5e-4), "qlora": (1e-4, 5e-4), "full": (1e-5, 5e-5)}
#: A clamped change smaller than this is no change: within it two runs of different seeds differ as much.
_LEAST_FACTOR = 1.2

#: A configured rate beyond this is no rate; comparing first keeps a huge whole number from overflowing a float.
_ABSURD = 1e6
#: Below this a folder name shows powers of ten, as people write learning rates.
_LEAST_PLAIN = 1e-2

NOT_THE_RATE = "do not change the learning rate for this"
KEEP_THE_REST = "leave every other setting as it is, so that you can tell what helped"


def known_rate(curves: Curves) -> float | None:
    """The peak learning rate: as configured, else the highest that was logged so far; None when neither is known."""
    configured = curves.settings.get("learning_rate")
    if isinstance(configured, int | float) and not isinstance(configured, bool) and 0 < configured < _ABSURD:
        return float(configured)
    return curves.peak_lr


def lower_rate(curves: Curves, why: str, *, times: int = 1) -> Prescription:
    """Divide the learning rate by 3, or by 9.

    The result is held at the low end of the method's range when the run is inside it. A run that failed at or below its
    method's low end gets the division all the same, with a hint that the rate may not be the cause.

    Args:
        curves: the run so far.
        why: the reason, one sentence.
        times: how many factors of 3.
    """
    rate, (low, _), method = known_rate(curves), usual_range(curves), _method(curves)
    factor = FACTOR**-times
    do_not = [KEEP_THE_REST]
    if rate is None:
        advice = f"Divide the learning rate by {FACTOR**times:.0f} and start again from the last good checkpoint."
        return Prescription((Change("learning_rate", None, None, factor),), advice, why, tuple(do_not))
    after = rate * factor
    if rate > low * _LEAST_FACTOR and after < low:
        after = low
        why += f"; {low:g} is the low end of the usual range for {method}"
    elif rate <= low * _LEAST_FACTOR and math.isfinite(low) and low > 0:
        do_not.append(
            f"do not lower it further than that: {rate:.3g} is already at the low end for {method}, so also suspect an 8-bit "
            "optimizer, the attention kernel, half-precision weights or broken data"
        )
    change = _rate_change(rate, after)
    advice = f"Lower the learning rate from {rate:.3g} to {change.after:g} and start again from the last good checkpoint."
    return Prescription((change,), advice, why, tuple(do_not))


def raise_rate(curves: Curves, why: str) -> Prescription:
    """Multiply the learning rate by 3, held at the high end of the method's range.

    A run that is already there is told to train longer instead.

    Args:
        curves: the run so far.
        why: the reason, one sentence.
    """
    rate, (_, high), method = known_rate(curves), usual_range(curves), _method(curves)
    if rate is None:
        advice = f"Multiply the learning rate by {FACTOR:.0f} and run again."
        return Prescription((Change("learning_rate", None, None, FACTOR),), advice, why, (KEEP_THE_REST,))
    after = min(rate * FACTOR, max(high, rate))
    if after < rate * _LEAST_FACTOR:
        advice = f"Train for more steps or epochs: {rate:.3g} is already at the high end of the usual range for {method}."
        return Prescription((), advice, why, ("do not raise the learning rate", KEEP_THE_REST))
    if after < rate * FACTOR:
        why += f"; {high:g} is the high end of the usual range for {method}"
    change = _rate_change(rate, after)
    return Prescription(
        (change,), f"Raise the learning rate from {rate:.3g} to {change.after:g} and run again.", why, (KEEP_THE_REST,)
    )


def other_cause(advice: str, why: str, *changes: Change) -> Prescription:
    """A cure for a trouble that the learning rate did not cause: it never changes the rate."""
    return Prescription(changes, advice, why, (NOT_THE_RATE,))


def standstill(curves: Curves, *, is_frozen: bool, guesses: bool) -> Prescription:
    """The cure of a run that learns nothing.

    Args:
        curves: the run so far.
        is_frozen: whether evaluations repeat bit by bit: then the weights do not change, and no rate would help.
        guesses: whether the loss is at the level of guessing, where a rate far too high leads as well.
    """
    if is_frozen:
        advice = "Find out why the weights do not change: print the trainable parameters and the logged learning rate."
        return other_cause(advice, "the evaluation loss repeats bit by bit, so the weights stay as they are")
    rate, high = known_rate(curves), usual_range(curves)[1]
    if guesses and rate is not None and rate > high:
        return lower_rate(curves, f"the model guesses and {rate:.3g} is above the usual range")
    return raise_rate(curves, "the training loss has not moved from its start")


def from_step(cure: Prescription, step: int | None) -> Prescription:
    """The same cure, naming the step to go back to: where the best checkpoint is not that of the lowest loss."""
    return dataclasses.replace(cure, checkpoint_step=step)


def fewer_epochs(curves: Curves, best_epoch: float | None, why: str) -> Prescription:
    """Keep the best checkpoint and end the next run where it was.

    Args:
        curves: the run so far.
        best_epoch: the epoch of the best checkpoint, when the log tells.
        why: the reason, one sentence.
    """
    planned = curves.settings.get("num_train_epochs")
    changes: tuple[Change, ...] = ()
    if best_epoch is not None and isinstance(planned, int | float) and not isinstance(planned, bool):
        wanted = max(1, math.ceil(best_epoch - 1e-6))
        if wanted < planned < 10**6:
            changes = (Change("num_train_epochs", planned, wanted, wanted / planned),)
    to = "end the next run about there"
    if changes:
        to = f"train {changes[0].after} epoch{'s' if changes[0].after != 1 else ''} instead of {planned:g}"
    advice = f"Use the best checkpoint, not the last one; {to}, or get more or more varied data."
    return Prescription(changes, advice, why, ("do not judge the last checkpoint", KEEP_THE_REST))


def for_run(findings: Sequence[Finding], curves: Curves, rate: LearningRateVerdict | None = None) -> Prescription | None:
    """The one prescription of a run: that of its earliest most serious open finding, with the checkpoint to go back to.

    Args:
        findings: of the run.
        curves: the run.
        rate: the verdict on the learning rate, which a cure never contradicts.

    Returns:
        None when no open warning or error has a cure; an informative finding alone is no reason to change anything.
    """
    found = cause(findings)
    if found is None or found.prescription is None:
        return None
    cure = found.prescription
    raises = any(c.setting == "learning_rate" and c.factor is not None and c.factor > 1 for c in cure.changes)
    if raises and rate is not None and rate.direction is RateDirection.DOWN:
        # A dead run is flat as well: what the course of the loss says of the rate goes before what flatness suggests.
        cure = lower_rate(curves, rate.reason, times=2 if rate.factor == FACTOR**2 else 1)
    best = curves.best
    step = cure.checkpoint_step if best is None else best.step
    return dataclasses.replace(cure, checkpoint_step=step, output_dir=output_dir(curves, cure.changes))


def cause(findings: Sequence[Finding]) -> Finding | None:
    """The finding whose cure is the run's: the earliest most serious open one; None without an open warning or error."""
    cures = [f for f in findings if f.prescription is not None and f.status is Status.OPEN and f.severity is not Severity.INFO]
    return min(cures, key=lambda f: (-f.severity.rank, f.first_step, f.code), default=None)


def output_dir(curves: Curves, changes: Sequence[Change]) -> str | None:
    """A folder name that carries the changed settings, such as `runs/lora-r16-lr6.7e-5`; None without a known change."""
    rank = curves.settings.get("lora_r")
    parts = [_method(curves) or "run"] + ([f"r{rank}"] if rank else [])
    short = {"learning_rate": "lr", "num_train_epochs": "ep", "max_grad_norm": "clip", "warmup_steps": "warmup"}
    told = [f"{short.get(c.setting, c.setting)}{compact(c.after)}" for c in changes if c.after is not None]
    return "runs/" + "-".join([*parts, *told]) if told else None


def compact(value: Setting) -> str:
    """A value as it reads in a folder name: `6.7e-5`, not `6.666666666666667e-05`."""
    if not isinstance(value, float):
        return str(value)
    if value >= _LEAST_PLAIN:
        return f"{value:.2g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def _rate_change(rate: float, after: float) -> Change:
    """A change of the learning rate, with two digits: more would feign precision. The factor stays the one meant."""
    return Change("learning_rate", float(f"{rate:.3g}"), float(f"{after:.2g}"), after / rate)


def _method(curves: Curves) -> str:
    method = curves.settings.get("method")
    return method if isinstance(method, str) else ""


def usual_range(curves: Curves) -> tuple[float, float]:
    """Lowest and highest usual learning rate of the run's method; (0, inf) when the method is not known."""
    return RANGES.get(_method(curves), (0.0, math.inf))
