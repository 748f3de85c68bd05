"""CD205 collapsed-loss: after a climb the loss sits at the level of guessing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.chance import TOLERANCE, guessing_among
from diagnose.climb import Course
from diagnose.curves import Curves, Track
from diagnose.model import Evidence, Finding, Kind, Row, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold
from diagnose.stats import median

_FALL = [1.38, 1.1, 0.8, 0.6, 0.5, 0.45, 0.42, 0.4]
_LN4 = [1.4, 1.38, 1.39, 1.37, 1.4, 1.39, 1.38, 1.39, 1.4, 1.38]


@dataclass(frozen=True)
class CollapsedLoss(Rule):
    """After a climb the loss sits at the level of guessing.

    What it sees:
        The training loss had been well below the loss of a model that guesses (ln of the classes or of the vocabulary),
        climbed, and now keeps that level: older and newer halves of the recent points both meet it.

    Why it matters:
        The model has lost what it knew and gives the same answer to everything. It has been seen to stay there for the rest
        of a run; waiting does not help.

    What to do:
        Go back to the best checkpoint and divide the learning rate by 3; by 9 when the loss is at or above its start.

    When it is wrong:
        Without a known number of classes any level can be near ln 2 … ln 8; only a climb to it counts, and the divergence
        is told by loss-divergence in any case.

    References:
        Labelled curves behind `fixtures/public`: two runs that collapsed to ln 2 and ln 4 and stayed.
    """

    code: ClassVar[str] = "CD205"
    name: ClassVar[str] = "collapsed-loss"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.SUPERVISED})
    meant_false_alarms: ClassVar[str] = "1e-10 a point: as loss-divergence, and at a level of guessing besides"

    climb: float = threshold(1.4, unit="ratio", low=1.0, high=100.0, source="as for loss-divergence")
    share: float = threshold(0.5, unit="share of the progress", low=0.0, high=10.0, source="a collapse gives most of it back")
    height: float = threshold(3.0, unit="sd of one point", low=0.0, high=100.0, source="as for loss-divergence")
    points: int = threshold(10, unit="points", low=4, high=64, source="two halves of five: a median each")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("four classes", {TRAIN_LOSS: [*_FALL, *_LN4]}, settings={"num_labels": 4}),
        Example("classes not known", {TRAIN_LOSS: [*_FALL, *_LN4, *_LN4]}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("never below it: flat", {TRAIN_LOSS: [*_LN4, *_LN4]}),
        Example("falls through it", {TRAIN_LOSS: [3.0, 2.5, 2.0, 1.7, 1.5, 1.39, 1.3, 1.2, 1.1, 1.0, 0.9, 0.8]}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _CollapsedLossWatch(self)


class _CollapsedLossWatch(Watch):
    rule: CollapsedLoss

    def __init__(self, rule: CollapsedLoss) -> None:
        super().__init__(rule)
        self.course = Course(is_eval=False)
        self.open: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        track, n = curves[TRAIN_LOSS], self.rule.points
        if not math.isfinite(track.last) or track.goes_negative:
            return NOTHING
        self.course.add(track)
        climb = self.course.climb(track)
        if track.n < n or climb is None or climb.share < self.rule.share:
            return self._maybe_resolve(track, row.step)
        recent = track.recent(n)
        level, best = median(recent), math.exp(self.course.best)
        k = guessing_among(level, curves.settings)
        halves = (recent[: n // 2], recent[n // 2 :])
        stays = k is not None and all(abs(median(half) / math.log(k) - 1) <= TOLERANCE for half in halves)
        is_high = climb.ratio >= self.rule.climb and climb.sigmas >= self.rule.height
        if k is None or not stays or not is_high:
            return self._maybe_resolve(track, row.step)
        off = abs(level / math.log(k) - 1)
        told = self.open
        past_start = level >= track.start * (1 - TOLERANCE)
        why = f"{TRAIN_LOSS} fell to {best:.4g} and then collapsed to ln {k}, the level of guessing"
        self.open = self.finding(
            TRAIN_LOSS,
            row.step if told is None else told.first_step,
            row.step,
            f"{TRAIN_LOSS} had reached {best:.4g}, now stays at {level:.4g}, near ln {k} = {math.log(k):.4g}: it guesses",
            Evidence(f"{TRAIN_LOSS} over its best level", climb.ratio, ">=", self.rule.climb, "ratio", row.step),
            Evidence("progress given back", climb.share, ">=", self.rule.share, "share", row.step),
            Evidence(f"distance from ln {k}", off, "<=", TOLERANCE, "share", row.step),
            prescription=prescribe.lower_rate(curves, why, times=2 if past_start else 1) if told is None else told.prescription,
        )
        return (self.open,)

    def _maybe_resolve(self, track: Track, step: int) -> Sequence[Finding]:
        past = self.open
        if past is None or self.course.still_up(track) > 0.5 * math.log(self.rule.climb):
            return NOTHING
        self.open = None
        message = f"{TRAIN_LOSS} had collapsed to the level of guessing but fell again to {track.level:.4g} at step {step}"
        return self.resolved(past, step, message)

    def skip(self, curves: Curves) -> str | None:
        return curves.no_likelihood
