"""Reports as Markdown: for a pull request, an issue or a notebook. The curve stands in a block of code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from diagnose.model import Report, Run, Status
from diagnose.report import words
from diagnose.verdict import leading

if TYPE_CHECKING:
    from diagnose.model import Finding, Prescription

#: Width of the drawn curve: what a pull request shows without a scroll bar.
_WIDTH = 80
#: Signs that Markdown, or the HTML within it, would take for its own.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#&])")


def markdown(pairs: Iterable[tuple[Report, Run | None]], skipped: Sequence[tuple[str, str]] = ()) -> str:
    """The reports of all runs, after a table of them where there are several.

    Args:
        pairs: a report, and its run for the curve, or None.
        skipped: path and reason of what was not read.
    """
    pairs = list(pairs)
    parts = [_table([report for report, _ in pairs])] if len(pairs) > 1 else []
    parts += [report_markdown(report, run) for report, run in pairs]
    if skipped:
        lines = [f"- {escape(path)}: {escape(reason)}" for path, reason in skipped]
        parts.append("## Not read\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def report_markdown(report: Report, run: Run | None = None) -> str:
    """One run's report."""
    about = f"{report.kind.value}, {words.count(report.n_points, 'point')}, last step {report.last_step}"
    blocks = [f"## {report.verdict.value}: {escape(report.id)}", escape(report.headline), about]
    if run is not None:
        blocks += _curve(report, run)
    groups = words.grouped(report.findings)
    if groups:
        blocks.append("### Findings")
        blocks += [_group(letter, group) for letter, group in groups]
    ends = []
    if report.prescription is not None:
        blocks.append("### What to do")
        ends = _cure(report.prescription)
    if report.best is not None:
        best = report.best
        ends.append(f"- best checkpoint: step {best.step}, {escape(best.metric)} {words.amount(best.value)}")
    if report.stop.stop:
        ends.append(f"- CurveDoctor {escape(words.stop(report.stop))}")
    if words.rate(report):
        ends.append(f"- learning rate: {escape(words.rate(report))}")
    if ends:
        blocks.append("\n".join(ends))
    if report.notes:
        blocks += ["### About the log", "\n".join(f"- {escape(note.text)}" for note in report.notes)]
    if words.skips(report.skips):
        blocks.append(escape(words.skips(report.skips)))
    if report.crashes:
        told = "\n".join(f"- {crash.code}: {escape(crash.error)}" for crash in report.crashes)
        blocks += ["### Crashed: a bug in Curve Doctor, not in the training", told]
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    r"""A text that Markdown shows as it is.

    >>> escape("runs/a_b [red] <b>")
    'runs/a\\_b \\[red\\] \\<b\\>'
    """
    return _SPECIAL.sub(r"\\\1", words.plain(text))


def _table(reports: Sequence[Report]) -> str:
    lines = ["| run | verdict | last step | finding | at step | best | stop |", "|---|---|---:|---|---:|---:|---:|"]
    for report in reports:
        first = leading(report.findings)
        cells = [
            escape(report.id),
            report.verdict.value,
            str(report.last_step),
            "" if first is None else f"{first.code} {first.name}",
            "" if first is None else str(first.first_step),
            "" if report.best is None else str(report.best.step),
            "" if report.stop.step is None else str(report.stop.step),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _curve(report: Report, run: Run) -> list[str]:
    from diagnose.report.curve import draw

    plot = draw(report, run, width=_WIDTH)
    if plot is None:
        return []
    lines = ["".join(glyph for glyph, _ in cells).rstrip() for cells in plot.lines]
    legend = "   ".join(f"{sign} {words.plain(name)}" for sign, _, name in plot.legend)
    # four backticks: a metric's name could hold three
    return ["\n".join(["````text", *lines, "", legend, "````"])]


def _group(letter: str, group: Sequence[Finding]) -> str:
    first = group[0]
    status = "" if first.status is Status.OPEN else ", resolved"
    lines = [f"- **{letter}** {first.severity.value} **{first.code} {first.name}** on {escape(first.metric)}{status}"]
    for finding in group:
        where = words.steps(finding)
        lines.append(f"  - {where}{': ' if where else ''}{escape(finding.message)}")
        lines += [f"    - {escape(words.evidence(item))}" for item in finding.evidence]
    return "\n".join(lines)


def _cure(cure: Prescription) -> list[str]:
    lines = [f"- **{escape(change.setting)}**: {escape(words.change(change))}" for change in cure.changes]
    lines += [f"- {escape(cure.advice)}", f"- why: {escape(cure.why)}"]
    lines += [f"- but: {escape(text)}" for text in cure.do_not]
    if cure.output_dir is not None:
        lines.append(f"- folder: {escape(cure.output_dir)}")
    return lines
