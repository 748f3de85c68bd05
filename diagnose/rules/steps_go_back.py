"""CD701 steps-go-back: the log was continued from an earlier step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Kind, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example, Rule, Watch, threshold


@dataclass(frozen=True)
class StepsGoBack(Rule):
    """The steps of the log go backwards: the run was resumed from an earlier checkpoint.

    What it sees:
        A reader's note that a metric was logged at a lower step than before. What the first attempt had logged beyond that
        step was dropped, as the resumed training replaced it.

    Why it matters:
        A resume changes the order of the data and often the state of the optimizer, so a jump of the loss at that step is
        not an instability. What was dropped is not judged.

    What to do:
        Compare the noise of the last logs before the step with that of the first after it before reading anything into a
        jump there. Give each run a log of its own.

    When it is wrong:
        Several processes that write into one log, or a metric that comes late, can look like a resume.

    References:
        transformers `TrainerState.log_history` is restored from the checkpoint on a resume.
    """

    code: ClassVar[str] = "CD701"
    name: ClassVar[str] = "steps-go-back"
    severity: ClassVar[Severity] = Severity.INFO
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)

    least: int = threshold(1, unit="notes", low=1, high=1000, source="one resume is worth a line")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("resumed once", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}, note_kinds=("steps-go-back",)),
        Example("resumed twice", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}, note_kinds=("steps-go-back", "steps-go-back")),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("one attempt", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}),
        Example("another note", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}, note_kinds=("not-a-number",)),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _StepsGoBackWatch(self)


class _StepsGoBackWatch(Watch):
    rule: StepsGoBack

    def close(self, curves: Curves) -> Sequence[Finding]:
        notes = [note for note in curves.notes if note.kind == self.rule.name]
        if len(notes) < self.rule.least:
            return ()
        evidence = Evidence("steps-go-back notes of the reader", float(len(notes)), ">=", float(self.rule.least))
        at = {min(note.step or 0, curves.last_step): note for note in reversed(notes)}
        return [self.finding(TRAIN_LOSS, step, curves.last_step, at[step].text, evidence) for step in sorted(at)]
