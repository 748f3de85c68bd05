"""A comparison for a terminal: which run is better, what changed, the losses beside each other, and a sweep of rates drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from diagnose.compare import Comparison, Entry
from diagnose.loss_differences import Difference
from diagnose.model import SETTINGS, Setting, Severity, Status
from diagnose.rate_sweep import Next
from diagnose.report import words
from diagnose.report.sweep import draw_sweep
from diagnose.report.table import cell
from diagnose.report.text import STYLES, VERDICTS, Page

#: Wider says no more, see `ReportView`.
_WIDEST = 100
#: Columns of a drawn sweep: a dozen rates need no more.
_WIDEST_SWEEP = 72
#: Characters of an id that are kept however narrow the page is.
_LEAST_ID = 12
#: Values of one setting that are listed.
_LISTED = 9
_INDENT = 4
_KINDS = {"best": "best", "end": "last"}


class ComparisonView:
    """A comparison, laid out when the console's width and encoding are known."""

    def __init__(self, found: Comparison) -> None:
        self.found = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the comparison."""
        page = Page(console, min(options.max_width, _WIDEST), is_ascii=options.ascii_only)
        page.paragraph((conclusion(self.found), "bold"), indent=0)
        if self.found.warning is not None:
            page.paragraph((self.found.warning, ""), label="warning", label_style=STYLES["warning"], indent=9)
        _changed(page, self.found)
        _losses(page, self.found)
        _runs(page, self.found.entries)
        _sweep(page, self.found)
        if self.found.next is not None:
            page.title("The learning rate to try next")
            _next(page, self.found.next)
        if self.found.cautions:
            page.title("Keep in mind")
            for text in self.found.cautions:
                page.paragraph((text, ""))
        yield from page.lines


def conclusion(found: Comparison) -> str:
    """Which run is better, in one or two sentences."""
    n, better, leaders = len(found.entries), found.better, found.leaders
    if better is not None:
        others = "" if n == 2 else f" than the other {n - 1}"  # noqa: PLR2004 - two are `better` alone
        noise = "" if better.noise is None else f" (noise {words.amount(better.noise)})"
        by = "the others were lost" if better.over is None else f"{words.amount(better.margin)} below {better.over}{noise}"
        where = f"{better.metric} {words.amount(better.value)} at step {better.step}"
        return f"{better.id} is better{others}: {where}, {by}. Use its checkpoint of step {better.step}."
    if leaders:
        best = next(d for d in found.differences if d.kind == "best")
        told = [f"{found.entries[i].report.id} ({_amount(best, i)} at step {_step(best, i)})" for i in best.level]
        last = told.pop() if len(told) <= _LISTED else f"{len(told) - _LISTED} more"
        rest = "; the others are worse" if len(best.level) < sum(point is not None for point in best.points) else ""
        return f"Within noise: the best {best.metric} of {', '.join(told[:_LISTED])} and {last} does not differ{rest}."
    trained = next((d for d in found.differences if d.metric == "train/loss"), None)
    if trained is None or trained.lowest is None:
        return "Which run is better cannot be told."
    where = f"{trained.metric} at step {_step(trained, trained.lowest)}"
    if trained.is_within_noise:
        return f"Which run is better cannot be told; {where} does not differ beyond noise."
    lowest = " and ".join(found.entries[i].report.id for i in trained.level)
    return f"Which run is better cannot be told; {where} is lowest, beyond noise, in {lowest}."


def _changed(page: Page, found: Comparison) -> None:
    page.title("What changed")
    if not found.changed:
        page.paragraph(("no setting that is known", "dim"))
    for item in found.changed:
        style = "bold" if item.counts else "dim"
        page.paragraph((item.setting, style), (f"  {_values(item.values)}", "" if item.counts else "dim"))


def _values(values: Sequence[Setting]) -> str:
    """Two as they are; of more runs each value once, in the order of the runs."""
    if len(values) == 2:  # noqa: PLR2004 - one run against another
        return " → ".join(words.setting(value) for value in values)
    told = list(dict.fromkeys(words.setting(value) for value in values))
    return ", ".join(told[:_LISTED]) + (", …" if len(told) > _LISTED else "")


def _losses(page: Page, found: Comparison) -> None:
    """A table: a line a run, a column a quantity; what is lowest, and what is as low within noise, is marked."""
    if not found.differences:
        return
    low, level = ("*", "~") if page.is_ascii else ("*", "≈")
    page.title("Losses")
    columns = [_column(d, low, level) for d in found.differences]
    widths = [max(len(text) for text in column) for column in columns]
    ids = ["", *(page.safe(entry.report.id) for entry in found.entries)]
    room = max(page.width - _INDENT - sum(widths) - 2 * len(widths), _LEAST_ID)
    size = min(max(Text(name).cell_len for name in ids), room)
    for i, name in enumerate(ids):
        cells = [cell(name, size, is_right=False, is_ascii=page.is_ascii)]
        cells += [column[i].rjust(width) for column, width in zip(columns, widths, strict=True)]
        page.line((" " * _INDENT + "  ".join(cells), "" if i else "dim"))
    metrics = ", ".join(dict.fromkeys(d.metric for d in found.differences))
    page.paragraph((f"{metrics}: {low} lowest, {level} within noise of it", "dim"))


def _column(found: Difference, low: str, level: str) -> list[str]:
    """Heading and values, each with its mark."""
    steps = {point.step for point in found.points if point is not None and point.step is not None}
    is_one = found.kind == "equal-steps" and len(steps) == 1
    side = found.metric.partition("/")[0]
    named = (
        f"{side} at {steps.pop()}"
        if is_one
        else f"{side} in common"
        if found.kind == "equal-steps"
        else f"{_KINDS[found.kind]} {side}"
    )
    lines = [named + "  "]
    for i, point in enumerate(found.points):
        at = "" if found.kind != "best" or point is None or point.step is None else f" at {point.step}"
        mark = low if i == found.lowest else level if i in found.level else " "
        lines.append(f"{_amount(found, i)}{at} {mark}")
    return lines


def _amount(found: Difference, i: int) -> str:
    point = found.points[i]
    return "-" if point is None else words.amount(point.value)


def _step(found: Difference, i: int) -> str:
    point = found.points[i]
    return "-" if point is None or point.step is None else str(point.step)


def _runs(page: Page, entries: Sequence[Entry]) -> None:
    """A line a run: its verdict and its findings."""
    page.title("Runs")
    size = max(len(entry.report.verdict.value) for entry in entries)
    names = [page.safe(entry.report.id) for entry in entries]
    room = page.width - _INDENT - size - 4
    wide = min(max(Text(name).cell_len for name in names), room // 2)
    for entry, name in zip(entries, names, strict=True):
        verdict = (entry.report.verdict.value.ljust(size) + "  ", VERDICTS[entry.report.verdict])
        told = page.safe(_within(_findings(entry), room - wide))
        shown = cell(name, wide, is_right=False, is_ascii=page.is_ascii)
        page.line((" " * _INDENT, ""), verdict, (shown, ""), (f"  {told}", "dim"))


def _findings(entry: Entry) -> list[str]:
    """What is open, the most serious first; a fact has no place that matters here."""
    report = entry.report
    found = [
        f for f in report.findings if f.status is Status.OPEN and (f.metric != SETTINGS or f.severity is not Severity.INFO)
    ]
    found.sort(key=lambda f: (-f.severity.rank, f.first_step))
    placed = [f.name if f.metric == SETTINGS or f.severity is Severity.INFO else f"{f.name} at {f.first_step}" for f in found]
    return [*(f"{crash.code} crashed: {crash.error}" for crash in report.crashes), *dict.fromkeys(placed)]


def _within(names: Sequence[str], room: int) -> str:
    """As many of the names as there is room for, and how many more there are."""
    if not names:
        return "no findings"
    for shown in range(len(names), 0, -1):
        more = f" and {len(names) - shown} more" if shown < len(names) else ""
        text = ", ".join(names[:shown]) + more
        if len(text) <= room:
            return text
    return text[: max(room - 1, 1)] + "…"


def _sweep(page: Page, found: Comparison) -> None:
    sweep = found.sweep
    if sweep is None:
        return
    page.title(f"Sweep of the learning rate: {sweep.metric}")
    plot = draw_sweep(sweep, width=min(page.width, _WIDEST_SWEEP) - _INDENT, is_ascii=page.is_ascii)
    if plot is not None:
        for cells in plot.lines:
            page.line((" " * _INDENT, ""), *((glyph, STYLES[role]) for glyph, role in cells))
        page.blank()
        page.legend(plot.legend)
        page.blank()
    if sweep.band is not None and sweep.best_rate is not None:
        low, high = (words.setting(rate) for rate in sweep.band)
        span = f"only {low}" if low == high else f"{low} to {high}"
        page.paragraph(
            (f"{span}, best {words.setting(sweep.best_rate)}", ""), label=" " * _INDENT + "serve", indent=_INDENT + 8
        )
    elif math.isfinite(min(sweep.bests, default=math.nan)):
        page.paragraph(("no rate moved the loss", ""), label=" " * _INDENT + "serve", indent=_INDENT + 8)
    _next(page, sweep.next)


def _next(page: Page, found: Next) -> None:
    page.paragraph((f"{words.setting(found.rate)}: {found.why}", ""), label=" " * _INDENT + "next", indent=_INDENT + 8)
    if found.output_dir is not None:
        page.paragraph((found.output_dir, ""), label=" " * _INDENT + "folder", indent=_INDENT + 8)
