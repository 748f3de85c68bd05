"""Replays the learning-rate advice on the recorded sweeps: from a bad start, does following it lead to a good rate?

    PYTHONPATH=fixtures python tests/benchmarks/treatment.py

A start is every run up to a factor of 27 from its sweep's best rate. The advice is followed, snapped to the sweep's grid of
factors of 3, at most three times. It succeeds when the loss comes within a tenth of the sweep's largest fall of the best
rate's loss: that of the last run trained, and that of the best of all runs trained, which is what a user keeps. The weights
are fitted to the other sweeps. Beside it: always divide by 3, never advise, and a rate finder (a third of the rate whose
first evaluation is the lowest).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import fit_rate
from sweeps import Sweep, load_sweeps

from diagnose import rate_weights
from diagnose.examination import examine
from diagnose.model import RateDirection
from diagnose.rate_features import GRADIENT_FEATURES, LOSS_FEATURES

TREATMENTS = 3
FARTHEST = 3
MARGIN = 0.1


def advice_of(sweep: Sweep, every: list[fit_rate.Sample]) -> list[int]:
    """Steps of a factor of 3 that the verdict advises for each run of a sweep, by a fit to the other sweeps."""
    others = [s for s in every if s.group != sweep.name]
    made = fit_rate.fit(others, LOSS_FEATURES + GRADIENT_FEATURES)
    shipped = {name: getattr(rate_weights, name) for name in dir(rate_weights) if name.startswith("WITH_GRADIENT")}
    try:
        for name, values in zip(("MEAN", "SCALE", "WEIGHTS"), made, strict=True):
            setattr(rate_weights, f"WITH_GRADIENT_{name}", values.tolist())
        return [_steps(sweep, i) for i in range(len(sweep.runs))]
    finally:
        for name, value in shipped.items():
            setattr(rate_weights, name, value)


def _steps(sweep: Sweep, i: int) -> int:
    # Without the method: so small a model's best rates lie far outside the usual range.
    settings = {k: v for k, v in sweep.runs[i].settings.items() if k != "method"}
    found = examine(dataclasses.replace(sweep.runs[i], settings=settings)).learning_rate
    assert found is not None
    size = 2 if found.factor == 9 else 1
    return {RateDirection.UP: size, RateDirection.DOWN: -size}.get(found.direction, 0)


def finder(sweep: Sweep) -> list[int]:
    """Steps to the rate a third below the one whose first evaluation is the lowest: what a range test would pick."""
    firsts = [float(run.series["eval/loss"].value[0]) for run in sweep.runs]
    target = max(0, min(range(len(firsts)), key=lambda k: firsts[k] if firsts[k] == firsts[k] else float("inf")) - 1)
    return [target - i for i in range(len(firsts))]


def replay(sweeps: list[Sweep], advise: Callable[[Sweep], list[int]]) -> tuple[int, int, int]:
    """Starts, those whose last run is good, and those of which any run is."""
    starts = last = any_run = 0
    for sweep in sweeps:
        steps, finals = advise(sweep), sweep.finals
        best = min(range(len(finals)), key=lambda k: finals[k])
        good = finals[best] + MARGIN * (sweep.start - finals[best])
        for start in range(len(finals)):
            if start == best or abs(start - best) > FARTHEST:
                continue
            seen = [start]
            for _ in range(TREATMENTS):
                if steps[seen[-1]] == 0:
                    break
                seen.append(max(0, min(len(finals) - 1, seen[-1] + steps[seen[-1]])))
            starts += 1
            last += finals[seen[-1]] <= good
            any_run += any(finals[k] <= good for k in seen)
    return starts, last, any_run


def main() -> None:
    """Print the table."""
    sweeps = [s for s in load_sweeps() if len(s.runs) == 9]
    every = list(fit_rate.samples())
    ways: dict[str, Callable[[Sweep], list[int]]] = {
        "the verdict (held out)": lambda s: advice_of(s, every),
        "always divide by 3": lambda s: [-1] * len(s.runs),
        "never advise": lambda s: [0] * len(s.runs),
        "a rate finder": finder,
    }
    print(f"{'way':<26}{'starts':>8}{'last run good':>16}{'any run good':>15}")
    for name, advise in ways.items():
        starts, last, any_run = replay(sweeps, advise)
        print(f"{name:<26}{starts:>8}{last / starts:>16.0%}{any_run / starts:>15.0%}")


if __name__ == "__main__":
    main()
