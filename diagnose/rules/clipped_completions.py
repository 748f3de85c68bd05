"""CD608 clipped-completions: nearly all completions run into the length limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.levels import LEVEL_POINTS, mean
from diagnose.model import Change, Evidence, Finding, Kind, Row, Severity
from diagnose.names import COMPLETION_LENGTH, REWARD, TRAIN_LOSS
from diagnose.rules.base import NOTHING, Example, Rule, Watch, threshold

CLIPPED = "train/completions/clipped_ratio"


@dataclass(frozen=True)
class ClippedCompletions(Rule):
    """Nearly all completions are cut off at the length limit before the model has ended them.

    What it sees:
        `completions/clipped_ratio` near 1 on average over the recent logs.

    Why it matters:
        A reward that looks for an answer at the end cannot find one in a text that was cut, so the signal that is left
        comes from the few that end by luck. The model never learns to stop, and each step costs the longest possible time.

    What to do:
        Double max_completion_length, or ask for shorter answers in the prompt. Check that the end-of-turn token is among
        the tokens that end a generation.

    When it is wrong:
        Some rewards judge a text of fixed length, which is clipped by design.

    References:
        Yu et al. 2025, "DAPO": what truncation does to the reward, and overlong shaping.
    """

    code: ClassVar[str] = "CD608"
    name: ClassVar[str] = "clipped-completions"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = (CLIPPED,)
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.RL})

    clipped: float = threshold(
        0.9, unit="share of the completions", low=0.1, high=1.0, source="labelled runs that readers found stuck at the cap"
    )
    back: float = threshold(
        0.5, unit="share of the completions", low=0.0, high=1.0, source="half of them end by themselves again"
    )
    points: int = threshold(LEVEL_POINTS, unit="points", low=2, high=64, source="points whose mean is a level")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("always at the cap", {TRAIN_LOSS: [0.0] * 20, REWARD: [0.3, 0.4] * 10, CLIPPED: [1.0] * 20}),
        Example(
            "runs into it",
            {
                TRAIN_LOSS: [0.0] * 40,
                REWARD: [0.3, 0.4] * 20,
                CLIPPED: [0.05 * min(i, 20) for i in range(40)],
                COMPLETION_LENGTH: [200.0 + 15.6 * min(i, 20) for i in range(40)],
            },
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("some are clipped", {TRAIN_LOSS: [0.0] * 40, REWARD: [0.3, 0.4] * 20, CLIPPED: [0.5, 1.0] * 20}),
        Example("none is clipped", {TRAIN_LOSS: [0.0] * 40, REWARD: [0.3, 0.4] * 20, CLIPPED: [0.0] * 40}),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _ClippedCompletionsWatch(self)


class _ClippedCompletionsWatch(Watch):
    rule: ClippedCompletions

    def __init__(self, rule: ClippedCompletions) -> None:
        super().__init__(rule)
        self.open: Finding | None = None

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        rule, track, value = self.rule, curves[CLIPPED], row.values.get(CLIPPED)
        if value is None or not math.isfinite(value) or track.n < rule.points:
            return NOTHING
        share = mean(track.recent(rule.points))
        if self.open is not None and share < rule.back:
            past, self.open = self.open, None
            return self.resolved(past, row.step, f"{100 * (1 - share):.0f} % of the completions end by themselves again")
        if share < rule.clipped:
            return NOTHING
        length = curves.get(COMPLETION_LENGTH)
        said = f"{100 * share:.0f} % of the completions of the last {rule.points} points are cut off"
        said += "" if length is None or not length.n else f", at {length.last:.0f} tokens on average"
        limit = curves.settings.get("max_completion_length")
        after = 2 * limit if isinstance(limit, int) and not isinstance(limit, bool) else None
        cure = prescribe.other_cause(
            "Double max_completion_length or ask for shorter answers, and check which token ends a generation.",
            "an answer that is cut off before its end cannot earn its reward",
            Change("max_completion_length", limit, after, 2.0),
        )
        self.open = self.finding(
            CLIPPED,
            row.step if self.open is None else self.open.first_step,
            row.step,
            said,
            Evidence("completions cut off", share, ">=", rule.clipped, "share", row.step),
            prescription=cure,
        )
        return (self.open,)
