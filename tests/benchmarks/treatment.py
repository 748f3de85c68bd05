"""Replays the learning-rate advice on the recorded sweeps: from a bad start, does following it lead to a good rate?

    PYTHONPATH=fixtures python tests/benchmarks/treatment.py

A start is every run up to a factor of 27 from its sweep's best rate; a bad one has a loss that is not good itself. The advice
is followed, snapped to the sweep's grid of factors of 3, at most three times. It succeeds when the loss comes within a tenth of
the sweep's largest fall of the best rate's loss: that of the last run trained, and that of the best of all runs trained, which
is what a user keeps. The weights are fitted to the other sweeps. `next_rate` looks at all tries so far, the verdict alone only
at the last. Beside them: always divide by 3, never advise, and a rate finder (a third of the rate whose first evaluation is the
lowest).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import fit_rate
from sweeps import Sweep, load_sweeps

from diagnose import rate_weights
from diagnose.examination import examine
from diagnose.model import LearningRateVerdict, RateDirection
from diagnose.next_rate import Try, next_rate
from diagnose.rate_features import GRADIENT_FEATURES, LOSS_FEATURES

TREATMENTS = 3
FARTHEST = 3
MARGIN = 0.1

#: The run to train after those already trained, as places on the grid; None to stop.
Advice = Callable[[Sequence[int]], int | None]


class Tally(NamedTuple):
    """Starts, those whose last run is good, those of which any run is; bad starts, and those of them of which any run is."""

    starts: int
    last: int
    any_run: int
    bad: int
    cured: int


def verdicts_of(sweep: Sweep, every: list[fit_rate.Sample], cut: float = 1.0) -> list[LearningRateVerdict]:
    """The verdict on each run of a sweep, or on that share of its steps, by a fit to the other sweeps."""
    others = [s for s in every if s.group != sweep.name]
    made = fit_rate.fit(others, LOSS_FEATURES + GRADIENT_FEATURES)
    shipped = {name: getattr(rate_weights, name) for name in dir(rate_weights) if name.startswith("WITH_GRADIENT")}
    try:
        for name, values in zip(("MEAN", "SCALE", "WEIGHTS"), made, strict=True):
            setattr(rate_weights, f"WITH_GRADIENT_{name}", values.tolist())
        return [_verdict(sweep, i, cut) for i in range(len(sweep.runs))]
    finally:
        for name, value in shipped.items():
            setattr(rate_weights, name, value)


def _verdict(sweep: Sweep, i: int, cut: float = 1.0) -> LearningRateVerdict:
    run = sweep.runs[i].until(int(cut * sweep.runs[i].last_step))
    # Without the method: so small a model's best rates lie far outside the usual range.
    settings = {k: v for k, v in run.settings.items() if k != "method"}
    found = examine(dataclasses.replace(run, settings=settings)).learning_rate
    assert found is not None
    return found


def one_verdict(sweep: Sweep, verdicts: Sequence[LearningRateVerdict]) -> Advice:
    """Follow the verdict on the last run and nothing else."""

    def advise(tried: Sequence[int]) -> int | None:
        found = verdicts[tried[-1]]
        size = 2 if found.factor == 9 else 1
        step = {RateDirection.UP: size, RateDirection.DOWN: -size}.get(found.direction, 0)
        return tried[-1] + step if step else None

    return advise


def all_tries(sweep: Sweep, verdicts: Sequence[LearningRateVerdict]) -> Advice:
    """Follow `next_rate`."""
    low = math.log(sweep.rates[0])

    def advise(tried: Sequence[int]) -> int | None:
        found = next_rate([Try(sweep.rates[i], sweep.start, sweep.finals[i], verdicts[i]) for i in tried])
        return None if found is None else round((math.log(found.rate) - low) / math.log(3))

    return advise


def finder(sweep: Sweep) -> Advice:
    """The rate a third below the one whose first evaluation is the lowest: what a range test would pick."""
    firsts = [float(run.series["eval/loss"].value[0]) for run in sweep.runs]
    target = max(0, min(range(len(firsts)), key=lambda k: firsts[k] if firsts[k] == firsts[k] else float("inf")) - 1)
    return lambda tried: None if tried[-1] == target else target


def replay(sweeps: Sequence[Sweep], advise: Callable[[Sweep], Advice]) -> Tally:
    """Follow the advice from every start."""
    starts = last = any_run = bad = cured = 0
    for sweep in sweeps:
        follow, finals = advise(sweep), sweep.finals
        best = min(range(len(finals)), key=lambda k: finals[k])
        good = finals[best] + MARGIN * (sweep.start - finals[best])
        for start in range(len(finals)):
            if start == best or abs(start - best) > FARTHEST:
                continue
            tried = [start]
            while len(tried) <= TREATMENTS:
                after = follow(tried)
                if after is None:
                    break
                tried.append(max(0, min(len(finals) - 1, after)))
            found = any(finals[k] <= good for k in tried)
            starts += 1
            last += finals[tried[-1]] <= good
            any_run += found
            if not finals[start] <= good:
                bad += 1
                cured += found
    return Tally(starts, last, any_run, bad, cured)


def main() -> None:
    """Print the table."""
    sweeps = [s for s in load_sweeps() if len(s.runs) == 9]
    every = list(fit_rate.samples())
    verdicts = {s.name: verdicts_of(s, every) for s in sweeps}
    ways: dict[str, Callable[[Sweep], Advice]] = {
        "the verdict alone (held out)": lambda s: one_verdict(s, verdicts[s.name]),
        "next_rate (held out)": lambda s: all_tries(s, verdicts[s.name]),
        "always divide by 3": lambda s: lambda tried: tried[-1] - 1,
        "never advise": lambda s: lambda tried: None,
        "a rate finder": finder,
    }
    print(f"{'way':<30}{'starts':>7}{'last run good':>15}{'any run good':>14}{'bad starts':>12}{'any run good':>14}")
    for name, advise in ways.items():
        t = replay(sweeps, advise)
        shares = t.last / t.starts, t.any_run / t.starts, t.cured / t.bad
        print(f"{name:<30}{t.starts:>7}{shares[0]:>15.0%}{shares[1]:>14.0%}{t.bad:>12}{shares[2]:>14.0%}")


if __name__ == "__main__":
    main()
