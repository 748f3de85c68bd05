"""Many runs for a terminal: one line each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from diagnose.model import Report, Severity, Verdict
from diagnose.report import words
from diagnose.report.text import VERDICTS
from diagnose.verdict import leading

#: Characters of a run's id that are kept however narrow the terminal is, beyond the column's heading.
_LEAST_ID = 5


def table(reports: Iterable[Report], *, is_ascii: bool, width: int | None = None) -> list[Text]:
    """One line a run, and a line that counts them.

    Args:
        reports: of the runs.
        is_ascii: whether the output can hold nothing but ASCII.
        width: shorten the runs' ids from the left to keep within it; None leaves them whole, as a pipe wants them.
    """
    reports = list(reports)
    rows = [("run", "verdict", "last step", "finding", "at", "best", "stop"), *(_row(r, is_ascii) for r in reports)]
    widths = [max(Text(row[i]).cell_len for row in rows) for i in range(len(rows[0]))]
    if width is not None:
        room = width - sum(widths[1:]) - 2 * (len(widths) - 1)
        widths[0] = min(widths[0], max(room, len("run") + _LEAST_ID))
    lines = []
    for row, report in zip(rows, [None, *reports], strict=True):
        line = Text(no_wrap=True, overflow="ignore")
        for i, (text, size) in enumerate(zip(row, widths, strict=True)):
            line.append(cell(text, size, is_right=i not in (0, 1, 3), is_ascii=is_ascii) + "  ", _cell_style(i, report))
        line.rstrip()
        lines.append(line)
    return [*lines, Text(), Text(tally(reports), "dim")]


def _row(report: Report, is_ascii: bool) -> tuple[str, ...]:
    first = leading(report.findings)
    none = "-"
    return (
        words.plain(report.id, is_ascii=is_ascii),
        report.verdict.value,
        str(report.last_step),
        none if first is None else first.name,
        none if first is None else str(first.first_step),
        none if report.best is None else str(report.best.step),
        none if report.stop.step is None else str(report.stop.step),
    )


def cell(text: str, size: int, *, is_right: bool, is_ascii: bool) -> str:
    """A text padded to its column, its left end cut off where it is too long: the end of a path tells more."""
    dots = "..." if is_ascii else "…"
    if Text(text).cell_len > size:
        text = dots + text[-(size - len(dots)) :]
        while Text(text).cell_len > size:
            text = dots + text[len(dots) + 1 :]
    pad = " " * (size - Text(text).cell_len)
    return pad + text if is_right else text + pad


def _cell_style(column: int, report: Report | None) -> str:
    if report is None:
        return "dim"
    if column == 1:
        return VERDICTS[report.verdict]
    first = leading(report.findings)
    is_minor = first is None or first.severity is Severity.INFO
    return "dim" if column in (3, 4) and is_minor else ""


def tally(reports: Sequence[Report]) -> str:
    """How many runs there are of each verdict: `3 runs: 1 sick, 2 healthy`."""
    n = {
        word: sum(r.verdict is word for r in reports)
        for word in (Verdict.SICK, Verdict.WATCH, Verdict.INCONCLUSIVE, Verdict.HEALTHY)
    }
    return f"{words.count(len(reports), 'run')}: " + ", ".join(f"{k} {word.value.lower()}" for word, k in n.items() if k)
