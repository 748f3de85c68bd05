"""Would other thresholds have been chosen without the runs that they are judged on? Writes `fixtures/held_out.json`.

    python tests/benchmarks/cross_validate.py        # five minutes on one core; from the root of a checkout

The labelled runs are divided into families, since runs of one person resemble each other, and whole families into five folds.
For each fold the thresholds of a rule are picked from a small grid around the defaults on the other four, by `objective`, and
scored on the fold; where several choices are equally good there, the mean of their scores counts. Beside these figures stand
those of the defaults, and of the best choice on all runs at once: what the last is better than the held-out figure is luck that
more tuning would mistake for skill. The grid is centred on defaults that were set on the same runs, so all of it flatters.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "fixtures"))  # the scripts there are in no package

from truth import EXCUSED_BY, Label, Outcome, labels, outcome, runs  # noqa: E402 - found through the line above

from diagnose.model import Run  # noqa: E402 - likewise after it
from diagnose.names import TRAIN_LOSS  # noqa: E402
from diagnose.rules import RULES, Rule  # noqa: E402

FOLDS = 5
#: Each threshold is tried at its default times these; a ratio, which is nothing at 1, at its default to these powers.
FACTORS = (0.7, 1.0, 1.4)
RATIOS = {"climb", "ratio"}
#: Two runs of one family start within this share of each other, or end at the same step.
ALIKE = 0.03
#: Rule to the tag that it names and the thresholds that are varied.
VARIED: dict[str, tuple[str, tuple[str, ...]]] = {
    "loss-spike": ("spike", ("height", "ratio")),
    "loss-divergence": ("diverged", ("climb", "share", "height")),
    "flat-loss": ("flat", ("moved", "chance")),
    "memorization": ("memorization", ("rise", "clear_rise", "height")),
    "epoch-staircase": ("staircase", ("drop", "together")),
}
#: Rules whose findings another one heeds.
HEEDED = {"memorization": ("unstable-loss",), "flat-loss": ("zero-loss", "loss-divergence")}

Choice = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Figures:
    """How a rule did on some runs: found, missed, false, healthy runs warned of, and runs ended that should go on."""

    found: float
    missed: float
    false: float
    alarmed: float
    wrong_stops: float
    healthy: float

    @property
    def f1(self) -> float:
        """Harmonic mean of recall and precision; 1 where there is nothing to find and nothing was reported."""
        wrong = self.missed + self.false
        return 2 * self.found / (2 * self.found + wrong) if self.found + wrong else 1.0

    @property
    def objective(self) -> float:
        """What a choice is picked by: F1, less the share of healthy runs that are warned of or stopped."""
        return self.f1 - (self.alarmed + self.wrong_stops) / max(self.healthy, 1)

    def __add__(self, other: Figures) -> Figures:
        """Both together."""
        return Figures(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def __truediv__(self, n: int) -> Figures:
        """The n-th part of each."""
        return Figures(*(a / n for a in dataclasses.astuple(self)))


def figures(name: str, tag: str, said: Mapping[str, Outcome], truth: Mapping[str, Label], ids: Iterable[str]) -> Figures:
    """How a rule did on the runs `ids`; a run in which only one reader saw the trouble counts for nothing."""
    found = missed = false = alarmed = stops = healthy = 0
    for o, label in ((said[i], truth[i]) for i in ids if truth[i].is_judged):
        is_told = name in o.found
        found += is_told and tag in label.tags
        missed += not is_told and tag in label.tags
        false += is_told and not EXCUSED_BY[name] & (label.tags | label.maybe)
        healthy += label.is_healthy
        alarmed += label.is_healthy and name in o.alarms
        stops += label.stop == "no" and o.because == name
    return Figures(found, missed, false, alarmed, stops, healthy)


def families(all_runs: Sequence[Run]) -> list[list[str]]:
    """Runs that may come from one source: the same metrics, logged as often, with the same last step or a like start."""

    def kin(run: Run) -> tuple[Any, ...]:
        spans = [int(s.step[1] - s.step[0]) if len(s) > 1 else 0 for _, s in sorted(run.series.items())]
        return (tuple(sorted(run.series)), tuple(spans))

    def start(run: Run) -> float:
        return next((float(v) for v in run.series[TRAIN_LOSS].value if math.isfinite(v)), 0.0)

    found: list[list[Run]] = []
    for run in all_runs:
        homes = [
            family
            for family in found
            if any(
                kin(run) == kin(other)
                and (run.last_step == other.last_step or abs(start(run) - start(other)) <= ALIKE * abs(start(other)))
                for other in family
            )
        ]
        found = [family for family in found if family not in homes] + [[run, *itertools.chain(*homes)]]
    return [[run.id for run in family] for family in found]


def folds(groups: Sequence[Sequence[str]], truth: Mapping[str, Label], tag: str) -> list[list[str]]:
    """Whole families dealt into folds, the largest first, so that each gets its share of the runs that have the tag."""
    dealt: list[list[str]] = [[] for _ in range(FOLDS)]

    def has(ids: Iterable[str]) -> int:
        return sum(tag in truth[i].tags for i in ids)

    for group in sorted(groups, key=lambda g: (-has(g), -len(g), min(g))):
        min(dealt, key=lambda fold: (has(fold) if has(group) else 0, len(fold))).extend(group)
    return dealt


def choices(rule: type[Rule], names: Sequence[str]) -> list[Choice]:
    """The grid around the defaults, the defaults first."""

    def values(name: str) -> list[float]:
        default = float(getattr(rule, name))
        return [default**f if name in RATIOS else default * f for f in sorted(FACTORS, key=lambda f: f != 1)]

    return [tuple(zip(names, combination, strict=True)) for combination in itertools.product(*map(values, names))]


def validate(name: str, all_runs: Sequence[Run], truth: Mapping[str, Label], groups: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Resubstitution and held-out figures of one rule."""
    tag, names = VARIED[name]
    by_name = {rule.name: rule for rule in RULES}
    others = [by_name[other]() for other in HEEDED.get(name, ())]
    grid = choices(by_name[name], names)
    said = {}
    for choice in grid:
        rules = sorted([*others, by_name[name](**dict(choice))], key=lambda rule: rule.code)
        said[choice] = {run.id: outcome(run.rows(), run.settings, rules, run.notes) for run in all_runs}

    def of(choice: Choice, ids: Iterable[str]) -> Figures:
        return figures(name, tag, said[choice], truth, ids)

    def best(ids: Sequence[str]) -> list[Choice]:
        objectives = [round(of(choice, ids).objective, 9) for choice in grid]
        return [choice for choice, value in zip(grid, objectives, strict=True) if value == max(objectives)]

    dealt = folds(groups, truth, tag)
    picked = [best([i for other in dealt if other is not fold for i in other]) for fold in dealt]
    held = [total(of(choice, fold) for choice in equals) / len(equals) for equals, fold in zip(picked, dealt, strict=True)]
    everyone = list(truth)
    return {
        "rule": name,
        "defaults": told(of(grid[0], everyone)),
        # The first of equals, and the defaults come first: a change has to earn its place.
        "best_on_all": told(of(best(everyone)[0], everyone)) | {"at": dict(best(everyone)[0])},
        "held_out": told(total(held)),
        "picked": [dict(equals[0]) | {"of": len(equals)} for equals in picked],
        "defaults_by_fold": [round(of(grid[0], fold).objective, 3) for fold in dealt],
        "held_out_by_fold": [round(f.objective, 3) for f in held],
    }


def told(f: Figures) -> dict[str, float]:
    """Figures as they are kept."""
    figures = dataclasses.asdict(f) | {"f1": f.f1, "objective": f.objective}
    return {name: round(value, 3) for name, value in figures.items()}


def total(some: Iterable[Figures]) -> Figures:
    """All together."""
    return functools.reduce(operator.add, some)


def main() -> int:
    """Validate each rule and write what came out."""
    all_runs, truth = list(runs()), labels()
    groups = families(all_runs)
    print(f"{len(all_runs)} runs in {len(groups)} families, the largest of {max(map(len, groups))}")
    results = [validate(name, all_runs, truth, groups) for name in VARIED]
    for result in results:
        print(json.dumps(result))
    content = {"runs": len(all_runs), "families": len(groups), "largest": max(map(len, groups)), "rules": results}
    (ROOT / "fixtures" / "held_out.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
