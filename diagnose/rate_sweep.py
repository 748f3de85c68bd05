"""Runs that differ in nothing but the learning rate: which rates serve, and which to try next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.loss_differences import LEAST
from diagnose.model import Change, Setting
from diagnose.settings_changed import RATE, is_one_rate
from diagnose.stats import median

#: Rates that make a sweep.
LEAST_RATES = 3
#: A rate serves when its loss is above the best by no more than this share of the largest drop of the sweep: another order of
#: the examples would undo a smaller gain.
MARGIN = 0.1
#: Rates a smaller factor apart are close enough: between them there is nothing to gain.
_FINE = 2.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a sweep.

    Args:
        rate: its peak learning rate.
        first: its first loss.
        best: its lowest loss; NaN without a finite one.
        last: its last loss; NaN where it is not finite.
        is_wrecked: whether its curve shows what a rate far too high does.
    """

    rate: float
    first: float
    best: float
    last: float
    is_wrecked: bool = False


@dataclass(frozen=True, slots=True)
class Next:
    """The run to make next.

    Args:
        rate: its learning rate.
        why: the reason, in one sentence.
        output_dir: a folder name for it.
    """

    rate: float
    why: str
    output_dir: str | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Loss against learning rate.

    Args:
        metric: of the losses.
        rates: the lowest first; runs of one rate are one entry.
        bests: lowest loss at each rate, the middle one of several runs; NaN where none was finite.
        finals: last loss, likewise.
        best_rate: where the lowest loss is lowest; None where none was finite.
        band: lowest and highest rate around it that serve as well; None where no rate moved the loss.
        next: the run to make next.
    """

    metric: str
    rates: tuple[float, ...]
    bests: tuple[float, ...]
    finals: tuple[float, ...]
    best_rate: float | None
    band: tuple[float, float] | None
    next: Next


def sweep_of(trials: Sequence[Trial], metric: str, settings: Mapping[str, Setting], *, is_logged: bool = False) -> Sweep | None:
    """What a sweep tells.

    Args:
        trials: the runs, in any order.
        metric: of their losses.
        settings: of any of the runs, for the next one's folder name.
        is_logged: whether the rates are only the highest that were logged.

    Returns:
        None for fewer than three rates.
    """
    groups: list[list[Trial]] = []
    for trial in sorted(trials, key=lambda t: t.rate):
        if groups and is_one_rate(trial.rate, groups[-1][0].rate, is_logged=is_logged):
            groups[-1].append(trial)
        else:
            groups.append([trial])
    if len(groups) < LEAST_RATES:
        return None
    rates = [group[0].rate for group in groups]
    bests = [_middle([t.best for t in group]) for group in groups]
    finals = [_middle([t.last for t in group]) for group in groups]
    wrecked = [
        any(t.is_wrecked for t in group) or not math.isfinite(final) for group, final in zip(groups, finals, strict=True)
    ]
    # A wrecked run may have been best before it went off, but nobody would train with its rate.
    ranked = [best if math.isfinite(best) and not lost else math.inf for best, lost in zip(bests, wrecked, strict=True)]
    low = min(range(len(ranked)), key=lambda i: (ranked[i], i))
    # The lowest rate has moved the least by its first look: it is the nearest to where all began.
    drop = groups[0][0].first - ranked[low]
    best_rate = rates[low] if math.isfinite(ranked[low]) else None
    has_moved = math.isfinite(drop) and drop > LEAST * abs(groups[0][0].first)
    ends = _band(ranked, low, MARGIN * drop) if has_moved else None
    rate, why = _after(rates, ranked, low, ends)
    change = Change(RATE, best_rate, rate)
    name = prescribe.output_dir(Curves(settings), (change,))
    return Sweep(
        metric=metric,
        rates=tuple(rates),
        bests=tuple(bests),
        finals=tuple(finals),
        best_rate=best_rate,
        band=None if ends is None else (rates[ends[0]], rates[ends[1]]),
        next=Next(rate, why, name),
    )


def _middle(values: Sequence[float]) -> float:
    """The median of what is finite, NaN where most is not."""
    finite = [v for v in values if math.isfinite(v)]
    return median(finite) if 2 * len(finite) > len(values) else math.nan


def _band(losses: Sequence[float], low: int, margin: float) -> tuple[int, int]:
    """First and last of the neighbours of the lowest loss that are within a margin of it, without a gap."""
    first = last = low
    while first > 0 and losses[first - 1] <= losses[low] + margin:
        first -= 1
    while last + 1 < len(losses) and losses[last + 1] <= losses[low] + margin:
        last += 1
    return first, last


def _after(rates: Sequence[float], losses: Sequence[float], low: int, band: tuple[int, int] | None) -> tuple[float, str]:
    """The rate of the next run, with two digits, and why."""
    factor = prescribe.FACTOR
    if not math.isfinite(losses[low]):
        return _rounded(rates[0] / factor), "every rate of the sweep wrecked its run, so go a factor of 3 below the lowest"
    if band is None:
        lost = [i for i, loss in enumerate(losses) if not math.isfinite(loss)]
        if lost and lost[0] > 0:
            top = rates[lost[0]]
            return _rounded(math.sqrt(rates[lost[0] - 1] * top)), f"no rate moved the loss, and {top:.3g} wrecked its run"
        if not lost:
            return _rounded(rates[-1] * factor), "no rate moved the loss, so go a factor of 3 above the highest"
    if low == len(rates) - 1:
        return _rounded(
            rates[-1] * factor
        ), "the highest rate is the best, so the optimum may lie above: go on by a factor of 3"
    if low == 0:
        return _rounded(rates[0] / factor), "the lowest rate is the best, so the optimum may lie below: go on by a factor of 3"
    near = min((low - 1, low + 1), key=lambda i: losses[i])
    ratio = max(rates[near] / rates[low], rates[low] / rates[near])
    if band is not None and band[0] <= near <= band[1] and ratio >= _FINE:
        pair = sorted((rates[low], rates[near]))
        return _rounded(math.sqrt(pair[0] * pair[1])), f"{pair[0]:.3g} and {pair[1]:.3g} are the best two: try between them"
    if ratio < _FINE:
        return _rounded(rates[low]), "it is the best, and the rates beside it are so near that nothing is to be gained between"
    return _rounded(rates[low]), "it is the best, and no rate beside it is nearly as good: keep it, and change another setting"


def _rounded(rate: float) -> float:
    return float(f"{rate:.2g}")
