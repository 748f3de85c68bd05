"""CD702 mixed-runs: one log holds several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Finding, Kind, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example, Rule, Watch, threshold


@dataclass(frozen=True)
class MixedRuns(Rule):
    """The log holds more than one run, or one run several times.

    What it sees:
        A reader's note that the log starts anew, or that rows of several processes are mixed in it.

    Why it matters:
        A jump between two runs looks like a spike or a divergence, and a second start looks like a fall.

    What to do:
        Give each run a folder or a file of its own, let only the first process log, and read the logs again.

    When it is wrong:
        A notebook that trains in several cells on purpose, one stage after the other, is read as several runs.

    References:
        TensorBoard `EventAccumulator` purges events of a step that comes again, for the same reason.
    """

    code: ClassVar[str] = "CD702"
    name: ClassVar[str] = "mixed-runs"
    severity: ClassVar[Severity] = Severity.INFO
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)

    least: int = threshold(1, unit="notes", low=1, high=1000, source="one second run is worth a line")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("two runs", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}, note_kinds=("mixed-runs",)),
        Example("three runs", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}, note_kinds=("mixed-runs", "mixed-runs")),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("one run", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}),
        Example("one run, resumed", {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6]}, note_kinds=("steps-go-back",)),
    )

    def start(self) -> Watch:
        """A fresh Watch for one run."""
        return _MixedRunsWatch(self)


class _MixedRunsWatch(Watch):
    rule: MixedRuns

    def close(self, curves: Curves) -> Sequence[Finding]:
        notes = [note for note in curves.notes if note.kind == self.rule.name]
        if len(notes) < self.rule.least:
            return ()
        evidence = Evidence("mixed-runs notes of the reader", float(len(notes)), ">=", float(self.rule.least))
        at = {min(note.step or 0, curves.last_step): note for note in reversed(notes)}
        return [self.finding(TRAIN_LOSS, step, curves.last_step, at[step].text, evidence) for step in sorted(at)]
