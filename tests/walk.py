"""What the tests of all rules share: an example or a drawn curve as rows, examined by one rule or by all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diagnose.examination import Examination
from diagnose.model import Finding, Note, Report, Row
from diagnose.rules import RULES, Example, Rule

#: One rule with one of its examples, for `parametrize`.
FIRING = [(rule, example) for rule in RULES for example in rule.firing]
SILENT = [(rule, example) for rule in RULES for example in rule.silent]


def label(value: object) -> str | None:
    """Test ids that read: the rule's name and the example's words."""
    if isinstance(value, type) and issubclass(value, Rule):
        return value.name
    return value.what.replace(" ", "-") if isinstance(value, Example) else None


def notes_of(example: Example) -> list[Note]:
    """A reader's notes of the kinds that the example names, each a row later than the one before."""
    rows = example.rows()
    return [
        Note(kind, f"a note of kind {kind} at step {rows[i + 1].step}", rows[i + 1].step)
        for i, kind in enumerate(example.note_kinds)
    ]


def watched(
    rows: Iterable[Row],
    rules: Sequence[Rule] | None = None,
    settings: Mapping[str, Any] | None = None,
    notes: Sequence[Note] = (),
) -> Examination:
    """An examination that was fed `rows` one by one."""
    exam = Examination(rules, settings=settings, notes=notes)
    for row in rows:
        exam.feed(row)
    return exam


def examined(example: Example, rules: Sequence[Rule] | None = None) -> Report:
    """The report on an example."""
    return watched(example.rows(), rules, example.settings, notes_of(example)).report()


def told(findings: Iterable[Finding]) -> list[tuple[str, str, str, str, int, int]]:
    """What is the same for two findings that differ only in numbers."""
    return [(f.name, f.metric, f.severity.value, f.status.value, f.first_step, f.last_step) for f in findings]
