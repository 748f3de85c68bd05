"""One run's report for a terminal: its verdict, its curve, its findings and what to do.

Everything is a line of rich Text, wrapped here: nothing from a log is read as markup, and no line has blanks at its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from diagnose.model import SETTINGS, Finding, Report, Run, Status, Verdict
from diagnose.report import words
from diagnose.report.curve import draw

#: One accent a severity; everything else is the terminal's own colour, bold or dim.
STYLES = {
    "error": "bold red",
    "warning": "bold yellow",
    "info": "blue",
    "resolved": "dim",
    "train": "cyan",
    "eval": "magenta",
    "nan": "red",
    "axis": "dim",
    "label": "dim",
    "best": "bold green",
    "stop": "bold red",
    "": "",
}
VERDICTS = {
    Verdict.HEALTHY: "bold green",
    Verdict.WATCH: "bold yellow",
    Verdict.SICK: "bold red",
    Verdict.INCONCLUSIVE: "bold blue",
}
#: Findings of one kind that are told in full; of the rest the steps are enough.
_TOLD = 2
#: Steps that are listed for those left over.
_LISTED = 8
#: A drawing wider than this says no more.
_WIDEST = 100
_INDENT = 4
_BETWEEN = "   "


def render_report(report: Report, run: Run | None = None, *, console: Console) -> None:
    """Print one run's report.

    Args:
        report: of the run.
        run: with the series, for the curve; without it none is drawn.
        console: where to; its width, colours and encoding are kept to.
    """
    console.print(report_renderable(report, run))


def report_renderable(report: Report, run: Run | None = None) -> ReportView:
    """One run's report as something that a rich Console prints.

    Args:
        report: of the run.
        run: with the series, for the curve.
    """
    return ReportView(report, run)


class ReportView:
    """One run's report, laid out when the console's width and encoding are known."""

    def __init__(self, report: Report, run: Run | None) -> None:
        self.report, self.run = report, run

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the report."""
        page = Page(console, min(options.max_width, _WIDEST), is_ascii=options.ascii_only)
        _head(page, self.report)
        if self.run is not None:
            _curve(page, self.report, self.run)
        _findings(page, self.report)
        _cure(page, self.report)
        _remarks(page, self.report)
        yield from page.lines


class Page:
    """Lines of Text, wrapped to a width and made safe for it."""

    def __init__(self, console: Console, width: int, *, is_ascii: bool) -> None:
        self.console, self.width, self.is_ascii = console, width, is_ascii
        self.lines: list[Text] = []

    def safe(self, text: str) -> str:
        return words.plain(text, is_ascii=self.is_ascii)

    def line(self, *parts: tuple[str, str]) -> None:
        """One line as it is, of texts and their styles."""
        line = Text(no_wrap=True, overflow="fold")
        for text, style in parts:
            line.append(text, style)
        line.rstrip()
        self.lines.append(line)

    def blank(self) -> None:
        self.lines.append(Text())

    def title(self, text: str) -> None:
        self.blank()
        self.line((self.safe(text), "bold"))

    def paragraph(self, *parts: tuple[str, str], label: str = "", label_style: str = "", indent: int = _INDENT) -> None:
        """Text wrapped to the width, `label` standing to the left of its first line."""
        body = Text()
        for text, style in parts:
            body.append(self.safe(text), style)
        for i, wrapped in enumerate(body.wrap(self.console, max(self.width - indent, _INDENT))):
            wrapped.rstrip()
            head = self.safe(label).ljust(indent) if i == 0 else " " * indent
            self.lines.append(Text.assemble((head, label_style if i == 0 else ""), wrapped, no_wrap=True, overflow="fold"))

    def legend(self, signs: Sequence[tuple[str, str, str]]) -> None:
        """What the signs of a drawing mean: each with its role and its name, as many on a line as fit."""
        line = Text()
        for sign, role, name in signs:
            entry = Text.assemble((sign, STYLES[role]), " ", (self.safe(name), "dim"))
            if line and line.cell_len + len(_BETWEEN) + entry.cell_len > self.width:
                self.lines.append(line)
                line = Text()
            line = Text.assemble(line, _BETWEEN if line else "", entry)
        self.lines.append(line)


def _head(page: Page, report: Report) -> None:
    """A rule with the verdict and the run, and the headline below it."""
    dash = "-" if page.is_ascii else "─"
    about = [words.count(report.n_points, "point"), f"last step {report.last_step}"]
    right = page.safe(" · ".join([report.kind.value, *about]))
    left = f"{dash * 2} {report.verdict.value} {dash * 2} "
    name = page.safe(report.id)
    gap = page.width - len(left) - Text(name).cell_len - len(right) - 2
    rule = (f" {dash * max(gap, 1)} ", "dim") if gap > 0 else ("\n   ", "")
    style = VERDICTS[report.verdict]
    page.line(
        (f"{dash * 2} ", "dim"), (report.verdict.value, style), (f" {dash * 2} ", "dim"), (name, "bold"), rule, (right, "dim")
    )
    page.blank()
    page.paragraph((report.headline, ""), indent=0)


def _curve(page: Page, report: Report, run: Run) -> None:
    plot = draw(report, run, width=page.width, is_ascii=page.is_ascii)
    page.blank()
    if plot is None:
        page.paragraph(("The log holds no loss to draw.", "dim"), indent=0)
        return
    for cells in plot.lines:
        page.line(*((glyph, STYLES[role]) for glyph, role in cells))
    page.blank()
    page.legend(plot.legend)


def _findings(page: Page, report: Report) -> None:
    if not report.findings:
        return
    page.title("Findings")
    for letter, group in words.grouped(report.findings):
        first = group[0]
        is_open = first.status is Status.OPEN
        style = STYLES[first.severity.value if is_open else "resolved"]
        status = "" if is_open else " · resolved"
        often = f" · {words.count(len(group), 'time')}" if len(group) > 1 else ""
        page.paragraph(
            (first.severity.value, style),
            (f"  {first.code} {first.name}", "bold" if is_open else "dim"),
            (f" · {first.metric}{often}{status}", "dim"),
            label=f"  {letter}",
            label_style=style,
        )
        for finding in group[:_TOLD]:
            _finding(page, finding, "" if is_open else "dim")
        if len(group) > _TOLD:
            page.paragraph((_left_over(group[_TOLD:]), "dim"))


def _finding(page: Page, finding: Finding, style: str) -> None:
    where = words.steps(finding)
    page.paragraph((finding.message, style), ("" if where in finding.message else f" ({where})", "dim"))
    if finding.metric == SETTINGS:
        return  # the message is the comparison, and a healthy run should read calmly
    for item in finding.evidence:
        page.paragraph((words.evidence(item), "dim"), label=" " * _INDENT + "· ", label_style="dim", indent=_INDENT + 2)


def _left_over(findings: Sequence[Finding]) -> str:
    listed = ", ".join(str(f.first_step) for f in findings[:_LISTED])
    return f"and {len(findings)} more, from step {listed}" + (", …" if len(findings) > _LISTED else "")


def _cure(page: Page, report: Report) -> None:
    """What to do: the changes, the advice and its reason, what to leave alone, where to go back to."""
    cure, best = report.prescription, report.best
    if cure is None and best is None and not report.stop.stop and not words.rate(report):
        return
    page.title("What to do" if cure is not None else "For the next run")
    if cure is not None:
        for change in cure.changes:
            page.paragraph((change.setting, "bold"), (f"  {words.change(change)}", ""))
        page.paragraph((cure.advice, ""))
        _labelled(page, "why", cure.why)
        for text in cure.do_not:
            _labelled(page, "but", text)
        if cure.output_dir is not None:
            _labelled(page, "folder", cure.output_dir)
    if best is not None:
        _labelled(page, "best", f"step {best.step}, {best.metric} {words.amount(best.value)}")
    if report.stop.stop:
        _labelled(page, "stop", f"CurveDoctor {words.stop(report.stop)}")
    rate = words.rate(report)
    if rate:
        _labelled(page, "rate", rate)


def _labelled(page: Page, label: str, text: str) -> None:
    page.paragraph((text, ""), label=" " * _INDENT + label, label_style="dim", indent=_INDENT + 8)


def _remarks(page: Page, report: Report) -> None:
    """What the reader noted, which rules could not look, and which of them crashed."""
    if report.notes:
        page.title("About the log")
        for note in report.notes:
            page.paragraph((note.text, ""))
    if words.skips(report.skips):
        page.blank()
        page.paragraph((words.skips(report.skips), "dim"), indent=0)
    if report.crashes:
        page.title("Crashed: a bug in Curve Doctor, not in the training")
        for crash in report.crashes:
            page.paragraph((f"{crash.code}  {crash.error}", STYLES["error"]))
