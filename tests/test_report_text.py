import dataclasses
import io
import math

import pytest
import sample_reports as samples
import snapshot
from rich.console import Console
from rich.text import Text

from diagnose.model import Evidence, Finding, Report, Run, Severity, Status
from diagnose.report import words
from diagnose.report.table import table
from diagnose.report.text import render_report

PICTURES = "⠁●◆■│"


class _Ascii(io.StringIO):
    """A terminal that can show ASCII alone, and fails on anything else."""

    encoding = "ascii"

    def write(self, text: str) -> int:
        text.encode("ascii")
        return super().write(text)


def rendered(report: Report, run: Run | None = None, *, width: int = 80, file: io.StringIO | None = None) -> str:
    page = io.StringIO() if file is None else file
    render_report(report, run, console=Console(file=page, width=width, color_system=None, force_terminal=False))
    return page.getvalue()


@pytest.mark.parametrize(("report", "run"), samples.ALL, ids=lambda x: x.verdict.value if isinstance(x, Report) else "")
def test_report_of_each_verdict(report: Report, run: Run) -> None:
    snapshot.check(f"report_{report.verdict.value.lower()}.txt", rendered(report, run))


def test_report_in_ascii() -> None:
    snapshot.check("report_sick_ascii.txt", rendered(samples.SICK, samples.SICK_RUN, file=_Ascii()))


def test_table() -> None:
    lines = table([report for report, _ in samples.ALL], is_ascii=False)
    snapshot.check("table.txt", "\n".join(line.plain for line in lines) + "\n")


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(("report", "run"), samples.ALL)
def test_no_line_is_too_wide_and_none_ends_in_blanks(report: Report, run: Run, width: int) -> None:
    for line in rendered(report, run, width=width).splitlines():
        assert Text(line).cell_len <= width
        assert line == line.rstrip()


@pytest.mark.parametrize(("report", "run"), samples.ALL)
def test_nothing_from_a_log_commands_the_terminal(report: Report, run: Run) -> None:
    text = rendered(report, run)
    assert all(c == "\n" or c.isprintable() for c in text)


def test_markup_in_an_id_is_text() -> None:
    assert "[red]spiky[/red]\\x1b[31m" in rendered(samples.WATCH)


def test_table_shortens_ids_from_the_left_when_asked() -> None:
    long = dataclasses.replace(samples.HEALTHY, id="very/" * 30 + "long")
    whole, short = table([long], is_ascii=False)[1].plain, table([long], is_ascii=False, width=80)[1].plain
    assert long.id in whole
    assert short.startswith("…")
    assert "/long  HEALTHY" in short
    assert len(short) <= 80


def test_without_a_run_no_curve_is_drawn() -> None:
    text = rendered(samples.SICK)
    assert "Findings" in text
    assert not any(c in text for c in PICTURES)


def test_colour_only_for_a_terminal_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    page = io.StringIO()
    console = Console(file=page, width=80, color_system="standard", force_terminal=True)
    render_report(samples.SICK, samples.SICK_RUN, console=console)
    assert "\x1b[" in page.getvalue()
    assert "\x1b[" not in rendered(samples.SICK, samples.SICK_RUN)


def test_open_findings_lead_and_equal_kinds_share_a_letter() -> None:
    info = Finding("CD706", "missing-eval", Severity.INFO, "train/loss", 1, 600, "no evaluation", ())
    groups = words.grouped([info, *samples.SPIKES, samples.NAN, samples.MEMORIZATION])
    assert [(letter, group[0].name, len(group)) for letter, group in groups] == [
        ("A", "memorization", 1),
        ("B", "nan-loss", 1),
        ("C", "missing-eval", 1),
        ("D", "loss-spike", 3),
    ]


def test_many_findings_of_one_kind_are_folded() -> None:
    many = [
        dataclasses.replace(samples.SPIKES[0], first_step=s, last_step=s, message=f"spike {s}") for s in range(100, 400, 10)
    ]
    report = dataclasses.replace(samples.WATCH, findings=tuple(many))
    text = rendered(report)
    assert "30 times" in text
    assert "spike 110" in text
    assert "spike 120" not in text
    assert "and 28 more, from step 120, 130" in text


def test_evidence_tells_the_comparison() -> None:
    told = words.evidence(Evidence("train/loss above its best", 9.0, ">", 2.5, "nats", 40))
    assert told == "train/loss above its best: 9 > 2.5 nats at step 40"
    assert words.evidence(Evidence("train/loss", math.nan, "is not finite")) == "train/loss: nan is not finite"


@pytest.mark.parametrize(
    ("before", "after", "factor", "told"),
    [
        (2e-4, 6.7e-5, 1 / 3, "2e-4 → 6.7e-5, divided by 3"),
        (None, None, 3.0, "times 3"),
        (None, 1.0, None, "set to 1"),
        ("fp16", "bf16", None, "fp16 → bf16"),
        (1.0, None, None, "leave unset"),
        (True, False, None, "True → False"),
    ],
)
def test_change_in_words(before: object, after: object, factor: float | None, told: str) -> None:
    from diagnose.model import Change

    assert words.change(Change("x", before, after, factor)) == told


def test_resolved_findings_are_told_as_such() -> None:
    assert all(f.status is Status.RESOLVED for f in samples.SPIKES)
    assert "3 times · resolved" in rendered(samples.WATCH)
