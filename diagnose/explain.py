"""A rule to its explanation: what the command prints, the documentation holds and the plugin shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnose.examination import Examination
from diagnose.model import Kind, Note
from diagnose.rules import RULES

if TYPE_CHECKING:
    from diagnose.model import Report, Run
    from diagnose.rules import Example, Rule

TABLE_START, TABLE_END = "<!-- rules -->", "<!-- /rules -->"


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number of a rule, as its class declares it."""

    name: str
    default: float
    unit: str
    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All there is to know of a rule.

    Args:
        code: such as `CD401`.
        name: such as `memorization`.
        severity: of its findings, unless they say otherwise.
        sentence: the rule in one sentence.
        sections: heading to text, in the order of the headings.
        thresholds: its numbers.
        needs: metrics without which it cannot look.
        kinds: kinds of run in which it has a meaning.
        since: the version that brought it.
        firing: small curves on which it speaks.
        silent: small curves on which it is silent.
    """

    code: str
    name: str
    severity: str
    sentence: str
    sections: dict[str, str]
    thresholds: tuple[Threshold, ...]
    needs: tuple[str, ...]
    kinds: tuple[str, ...]
    since: str
    firing: tuple[Example, ...]
    silent: tuple[Example, ...]


def explain(rule: type[Rule]) -> Explanation:
    """Collect what a rule's class says of itself."""
    sections = rule.sections()
    sentence = " ".join(sections.pop("", "").split())
    return Explanation(
        code=rule.code,
        name=rule.name,
        severity=rule.severity.value,
        sentence=sentence,
        sections=sections,
        thresholds=tuple(_threshold(field) for field in dataclasses.fields(rule)),
        needs=rule.needs,
        kinds=tuple(kind.value for kind in Kind if kind in rule.kinds),
        since=rule.since,
        firing=rule.firing,
        silent=rule.silent,
    )


def examine_example(rule: type[Rule], example: Example) -> tuple[Run, Report]:
    """An example as a run, with what the rule alone says of it."""
    from diagnose.rows import build_run

    notes = [Note(kind, kind) for kind in example.note_kinds]
    run = build_run(example.rows(), id=example.what, source="example", settings=example.settings, notes=notes)
    exam = Examination([rule()], settings=run.settings, notes=run.notes)
    for row in run.rows():
        exam.feed(row)
    return run, exam.report(run.id, run.source)


def rule_table(rules: Iterable[type[Rule]] = RULES) -> str:
    """The rules as a Markdown table, which the README holds."""
    lines = ["| code | name | severity | what it sees |", "|---|---|---|---|"]
    for rule in rules:
        told = explain(rule)
        sentence = told.sentence.replace("|", "\\|")
        lines.append(f"| {told.code} | `{told.name}` | {told.severity} | {sentence} |")
    return "\n".join(lines) + "\n"


def with_rule_table(text: str) -> str:
    """A document with the rule table between its two markers brought up to date.

    Args:
        text: holds `TABLE_START` and, below it, `TABLE_END`.

    Raises:
        ValueError: a marker is missing.
    """
    before, start, rest = text.partition(TABLE_START)
    _, end, after = rest.partition(TABLE_END)
    if not start or not end:
        raise ValueError(f"the text must hold {TABLE_START} and {TABLE_END}")
    return f"{before}{start}\n{rule_table()}{end}{after}"


def _threshold(field: dataclasses.Field[float]) -> Threshold:
    meta = field.metadata
    default = field.default if isinstance(field.default, int | float) else float("nan")
    return Threshold(field.name, default, meta["unit"], meta["low"], meta["high"], meta["source"])
