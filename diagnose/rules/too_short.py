"""CD704 too-short: too little was logged to judge the shape of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Kind, Severity
from diagnose.names import EVAL_LOSS, REWARD, TRAIN_LOSS
from diagnose.rules.base import Example, Rule, Watch, threshold


@dataclass(frozen=True)
class TooShort(Rule):
    """The log holds too few points to say whether the run goes well.

    What it sees:
        Fewer finite training losses than a shape needs, and too few evaluations to stand in for them.

    Why it matters:
        With a handful of noisy points neither a fall nor a plateau nor a spike can be told from chance: that nothing was
        found does not mean that the run is healthy.

    What to do:
        Log more often: `logging_steps` at a hundredth of the run or less costs next to nothing.

    When it is wrong:
        Where each point is the mean over a whole epoch, fewer of them say as much as many single steps.

    References:
        Kendall 1975: with four points even a perfect order comes by chance once in twelve.
    """

    code: ClassVar[str] = "CD704"
    name: ClassVar[str] = "too-short"
    severity: ClassVar[Severity] = Severity.INFO
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)
    hushed_by: ClassVar[tuple[str, ...]] = ("nan-loss", "hidden-nan", "zero-loss")

    points: int = threshold(
        8, unit="points", low=1, high=1000, source="two readers found recorded runs of ten steps hard to judge"
    )
    evals: int = threshold(3, unit="evaluations", low=1, high=1000, source="a fall, a minimum and a rise need three")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("four points", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}),
        Example("one point", {TRAIN_LOSS: [2.0]}),
        Example("two evaluations", {TRAIN_LOSS: [2.0, 1.8], EVAL_LOSS: [2.1, 1.9]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("enough points", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4]}),
        Example("an epoch a point, evaluated", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6], EVAL_LOSS: [2.1, 1.9, 1.8, 1.8]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _TooShortWatch(self)


class _TooShortWatch(Watch):
    rule: TooShort

    def close(self, curves: Curves) -> Sequence[Finding]:
        # Some reinforcement-learning logs hold no loss at all.
        n = max((track.n for track in (curves.train, curves.get(REWARD)) if track is not None), default=0)
        n_evals = max((track.n for name, track in curves.tracks.items() if name.startswith("eval/")), default=0)
        if n >= self.rule.points or n_evals >= self.rule.evals:
            return ()
        first = min((track.first_step for track in curves.tracks.values()), default=0)
        points, evals = "point" if n == 1 else "points", "evaluation" if n_evals == 1 else "evaluations"
        said = f"{n} finite {points} of {TRAIN_LOSS} and {n_evals} {evals} are too few to judge the shape of the run"
        return (
            self.finding(
                TRAIN_LOSS,
                first,
                curves.last_step,
                said,
                Evidence(f"finite points of {TRAIN_LOSS}", float(n), "<", float(self.rule.points)),
                Evidence("evaluations", float(n_evals), "<", float(self.rule.evals)),
            ),
        )
