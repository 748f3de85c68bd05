"""The list of the rules and the page of one rule, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult

from diagnose.explain import examine_example, explain
from diagnose.report import words
from diagnose.report.text import STYLES, Page

if TYPE_CHECKING:
    from diagnose.rules import Example, Rule

_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.,-=+*#"
_NOT_FINITE, _MISSING = "x", " "
_WIDEST = 100
_SHOWN = 40


class RuleList:
    """One line a rule: code, name, severity and its sentence."""

    def __init__(self, rules: Iterable[type[Rule]]) -> None:
        self.told = [explain(rule) for rule in rules]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the list."""
        page = Page(console, min(options.max_width, _WIDEST), is_ascii=options.ascii_only)
        name = max(len(t.name) for t in self.told)
        for t in self.told:
            label = f"{t.code}  {t.name.ljust(name)}  {t.severity.ljust(len('warning'))}  "
            page.paragraph((t.sentence, ""), label=label, label_style=STYLES[t.severity], indent=len(label))
        yield from page.lines


class RulePage:
    """All about one rule: its sections, its thresholds and its examples."""

    def __init__(self, rule: type[Rule]) -> None:
        self.rule = rule

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the page."""
        page = Page(console, min(options.max_width, _WIDEST), is_ascii=options.ascii_only)
        told = explain(self.rule)
        page.line(
            (told.code, STYLES[told.severity]), (f" {told.name}", "bold"), (f"  {told.severity}, since {told.since}", "dim")
        )
        page.paragraph((told.sentence, ""), indent=0)
        for heading, text in told.sections.items():
            page.title(heading)
            for paragraph in text.split("\n\n"):
                page.paragraph((" ".join(paragraph.split()), ""))
        page.title("Looks at")
        page.paragraph(
            (", ".join(need.replace("|", " or ") for need in told.needs) or "the settings and the reader's notes", "")
        )
        page.paragraph((f"in runs of kind {', '.join(told.kinds)}", "dim"))
        if told.thresholds:
            page.title("Thresholds")
        for t in told.thresholds:
            bounds = f"{words.amount(t.low)} to {words.amount(t.high)}"
            page.paragraph((t.name, "bold"), (f" = {words.amount(t.default)} {t.unit}", ""), (f"  ({bounds})", "dim"))
            page.paragraph((t.source, "dim"), indent=6)
        for title, examples in (("Fires on", told.firing), ("Stays silent on", told.silent)):
            if examples:
                page.title(title)
            for example in examples:
                self._example(page, example)
        yield from page.lines

    def _example(self, page: Page, example: Example) -> None:
        """What the example is, its curves, and what the rule says of it."""
        page.paragraph((example.what, ""))
        width = max(len(name) for name in example.curves)
        for name, values in example.curves.items():
            bars = sparkline(values, is_ascii=page.is_ascii)
            page.line(
                (f"      {name.ljust(width)}  ", "dim"), (bars, STYLES["train"]), (page.safe(f"  {_ends(values)}"), "dim")
            )
        if example.settings:
            page.paragraph((", ".join(f"{k} = {words.setting(v)}" for k, v in example.settings.items()), "dim"), indent=6)
        _, report = examine_example(self.rule, example)
        for finding in report.findings:
            page.paragraph((finding.message, ""), label="      → ", label_style=STYLES[finding.severity.value], indent=8)


def sparkline(values: Sequence[float | None], *, is_ascii: bool = False) -> str:
    """A curve on one line; `x` stands for NaN and inf, a blank for a row without the metric.

    Args:
        values: at most `_SHOWN` of them are drawn, evenly chosen.
        is_ascii: whether the output can hold nothing but ASCII.

    >>> sparkline([3.0, 2.0, None, 1.0, float("nan")], is_ascii=True)
    '#= _x'
    """
    bars = _PLAIN_BARS if is_ascii else _BARS
    good = [v for v in values if v is not None and math.isfinite(v)]
    low, high = min(good, default=0.0), max(good, default=0.0)
    n = min(len(values), _SHOWN)
    chosen = [values[round(i * (len(values) - 1) / max(n - 1, 1))] for i in range(n)]
    signs = []
    for v in chosen:
        if v is None:
            signs.append(_MISSING)
        elif not math.isfinite(v):
            signs.append(_NOT_FINITE)
        else:
            share = (v / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5
            signs.append(bars[round(share * (len(bars) - 1))])
    return "".join(signs)


def _ends(values: Sequence[float | None]) -> str:
    logged = [v for v in values if v is not None]
    return f"{words.amount(logged[0])} … {words.amount(logged[-1])}" if logged else "nothing"
