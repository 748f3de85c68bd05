"""The engine: what it feeds to whom, what it keeps, and that a rule of ours that crashes ends nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
from walk import told, watched

from diagnose.examination import Examination, default_rules, examine
from diagnose.model import Evidence, Kind, Note, Row, Severity, Status, Verdict
from diagnose.rows import build_run
from diagnose.rules import RULES, Rule, Watch
from diagnose.rules.nan_loss import NanLoss
from diagnose.verdict import StopPolicy

NAN = math.nan


@dataclass(frozen=True)
class Witness(Rule):
    """Tells of every row that it was shown."""

    code: ClassVar[str] = "CD999"
    name: ClassVar[str] = "witness"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = ("train/loss|train/other",)
    also: ClassVar[tuple[str, ...]] = ("eval/*",)

    def start(self) -> Watch:
        return WitnessWatch(self)


class WitnessWatch(Watch):
    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.rows: list[Row] = []

    def see(self, row, curves):
        self.rows.append(row)
        return [self.finding("train/loss", row.step, row.step, f"row {row.step}", Evidence("x", 1.0, ">", 0.0))]


@dataclass(frozen=True)
class CrashesAtStep(Rule):
    """Has a bug that shows at step 30."""

    code: ClassVar[str] = "CD998"
    name: ClassVar[str] = "crashes-at-step"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[tuple[str, ...]] = ("train/loss",)

    def start(self) -> Watch:
        return CrashingWatch(self)


class CrashingWatch(Watch):
    def see(self, row, curves):
        if row.step == 30:
            raise ZeroDivisionError("a bug of ours")
        return [self.finding("train/loss", 10, row.step, "so far", Evidence("x", 1.0, ">", 0.0), severity=Severity.INFO)]


@dataclass(frozen=True)
class CrashesAtEnd(CrashesAtStep):
    """Has a bug that shows when the run is closed, or when it is asked why it could not look."""

    code: ClassVar[str] = "CD997"
    name: ClassVar[str] = "crashes-at-end"

    def start(self) -> Watch:
        return BadEndWatch(self)


class BadEndWatch(Watch):
    def close(self, curves):
        raise KeyError("a bug of ours")


def rows_of(*losses: float, step: int = 10) -> list[Row]:
    return [Row((i + 1) * step, {"train/loss": v}) for i, v in enumerate(losses)]


def test_crashing_rule_is_reported_and_the_others_go_on():
    exam = watched(rows_of(2.0, 1.9, 1.8, NAN, NAN), [NanLoss(), CrashesAtStep(), Witness()])
    report = exam.report()
    (crash,) = report.crashes
    assert crash.code == "CD998"
    assert crash.error == "ZeroDivisionError: a bug of ours"
    assert "in see" in crash.traceback
    names = [f.name for f in report.findings]
    assert names.count("witness") == 5
    assert names.count("nan-loss") == 1
    # What it had found before the bug showed is kept; it is not asked again.
    (kept,) = [f for f in report.findings if f.name == "crashes-at-step"]
    assert kept.last_step == 20


def test_rule_that_crashes_at_the_end_is_reported_and_the_live_run_goes_on():
    exam = watched(rows_of(2.0, 1.9), [CrashesAtEnd(), NanLoss()])
    assert [c.error for c in exam.report().crashes] == ["KeyError: 'a bug of ours'"]
    assert not exam.crashes
    exam.feed(Row(30, {"train/loss": NAN}))
    assert [f.name for f in exam.report().findings] == ["nan-loss"]


def test_crash_never_stops_a_run():
    report = watched(rows_of(*[1.0] * 5), [CrashesAtStep()]).report()
    assert report.crashes
    assert not report.stop.stop
    assert report.verdict is Verdict.HEALTHY


def test_rule_sees_the_rows_of_the_metrics_it_asked_for():
    exam = Examination([Witness()])
    for row in (
        Row(1, {"train/loss": 1.0, "train/lr": 0.1}),
        Row(2, {"train/lr": 0.1}),
        Row(3, {"train/other": 0.1}),
        Row(4, {"eval/anything": 0.1}),
    ):
        exam.feed(row)
    assert [f.first_step for f in exam.findings] == [1, 3, 4]


def test_row_with_both_sides_is_seen_training_first():
    exam = Examination([Witness()])
    exam.feed(Row(5, {"eval/loss": 2.0, "train/loss": 1.0}, 0.5))
    watch = exam._watches["CD999"]
    assert [sorted(r.values) for r in watch.rows] == [["train/loss"], ["eval/loss"]]
    assert [r.epoch for r in watch.rows] == [0.5, 0.5]
    apart = watched([Row(5, {"train/loss": 1.0}, 0.5), Row(5, {"eval/loss": 2.0}, 0.5)], [Witness()])
    assert repr(exam.report()) == repr(apart.report())


def test_second_telling_of_a_step_is_left_out():
    exam = watched([Row(1, {"train/loss": 1.0}), Row(1, {"train/loss": NAN}), Row(2, {"train/loss": 0.9})])
    assert exam.curves["train/loss"].n == 2
    assert not exam.curves["train/loss"].n_bad
    assert exam.feed(Row(2, {"train/loss": NAN})) == ()


def test_row_that_comes_late_is_left_out_with_a_note():
    exam = watched([Row(10, {"train/loss": 1.0}), Row(5, {"train/loss": NAN}), Row(20, {"train/loss": 0.9})])
    report = exam.report()
    assert [(n.kind, n.step) for n in report.notes] == [("late-row", 5)]
    assert report.n_points == 2
    assert not [f for f in report.findings if f.severity is not Severity.INFO]


def test_feed_returns_what_changed():
    exam = Examination([NanLoss()])
    fed = [exam.feed(row) for row in rows_of(2.0, NAN, NAN, 1.0, 1.0, 1.0)]
    said = [[(f.severity.value, f.status.value) for f in found] for found in fed]
    assert said == [[], [("warning", "open")], [("error", "open")], [], [("warning", "resolved")], []]
    assert len(exam.findings) == 1


def test_stop_decision_is_made_once_and_kept():
    exam = watched(rows_of(2.0, NAN, NAN, 1.0, 1.0, 1.0, NAN, NAN), [NanLoss()])
    assert (exam.stop.stop, exam.stop.step) == (True, 30)
    assert exam.stop.because.severity is Severity.ERROR
    assert exam.report().findings[0].status is Status.RESOLVED
    kept_going = Examination([NanLoss()], policy=StopPolicy(frozenset()))
    for row in rows_of(2.0, NAN, NAN):
        kept_going.feed(row)
    assert not kept_going.stop.stop


def test_skip_tells_which_metric_is_missing():
    report = watched([Row(1, {"train/lr": 0.1})], [NanLoss(), Witness()]).report()
    assert [(s.code, s.reason) for s in report.skips] == [
        ("CD101", "the log has no train/loss"),
        ("CD999", "the log has no train/loss or train/other"),
    ]
    assert report.verdict is Verdict.INCONCLUSIVE


def test_kind_of_run_is_noticed_once_its_keys_appear():
    exam = watched(rows_of(0.0, 0.0))
    assert exam.report().kind is Kind.SUPERVISED
    exam.feed(Row(30, {"train/loss": 0.0, "train/reward": 1.0}))
    report = exam.report()
    assert report.kind is Kind.RL
    assert any("no meaning for a run of kind rl" in s.reason for s in report.skips)


def test_report_carries_the_run_and_nothing_of_the_machine(tmp_path, monkeypatch):
    rows = [Row(10, {"train/loss": 2.0, "eval/loss": 2.1}), Row(20, {"train/loss": NAN})]
    run = build_run(rows, id="a/b", source="log.json", settings={"seed": 1}, notes=[Note("k", "t")])
    here = examine(run)
    monkeypatch.chdir(tmp_path)
    assert repr(examine(run)) == repr(here)
    assert (here.id, here.source, here.last_step, here.n_points) == ("a/b", "log.json", 20, 2)
    assert here.settings == {"seed": 1}
    assert (here.best.step, here.best.value, here.best.metric) == (10, 2.1, "eval/loss")
    assert here.notes == run.notes


def test_findings_are_sorted_by_where_they_begin():
    report = watched([Row(i, {"train/loss": 1.0, "train/lr": 0.0, "eval/loss": NAN}) for i in range(1, 400)]).report()
    assert [(f.first_step, f.code) for f in report.findings] == sorted((f.first_step, f.code) for f in report.findings)
    assert len(report.findings) > 2


def test_default_rules_are_all_rules():
    assert [type(rule) for rule in default_rules()] == list(RULES)
    assert [type(rule) for rule in Examination().rules] == list(RULES)


def test_rules_keep_to_themselves():
    """A rule alone says what it says in company, unless another one's finding silences it."""
    rows = rows_of(2.0, 1.9, NAN, NAN, 1.8, 1.7, 1.6)
    alone = told(watched(rows, [NanLoss()]).report().findings)
    assert [f for f in told(watched(rows).report().findings) if f[0] == "nan-loss"] == alone


@pytest.mark.parametrize("step", [0, -5, 2**40])
def test_any_step_will_do(step: int):
    report = watched([Row(step + i, {"train/loss": 1.0}) for i in range(12)]).report()
    assert not report.crashes
    assert report.last_step == step + 11
