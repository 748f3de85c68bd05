"""What holds for every rule, whatever it looks for."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from walk import FIRING, SILENT, examined, label, notes_of

import diagnose.rules
from diagnose import verdict
from diagnose.errors import ConfigError
from diagnose.examination import examine
from diagnose.model import Kind, Row, Severity, Status
from diagnose.names import kind_of
from diagnose.rows import build_run
from diagnose.rules import RULES, Example, Rule
from diagnose.rules.base import HEADINGS

HOME = Path(diagnose.rules.__file__).parent
THRESHOLDS = [(rule, field) for rule in RULES for field in dataclasses.fields(rule)]
#: Longer than that, a rule does two things.
MAX_LINES = 265

each_rule = pytest.mark.parametrize("rule", RULES, ids=label)
each_firing = pytest.mark.parametrize(("rule", "example"), FIRING, ids=label)
each_silent = pytest.mark.parametrize(("rule", "example"), SILENT, ids=label)


def test_rules_stand_in_the_order_of_their_codes():
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))
    assert all(re.fullmatch(r"CD[1-8]\d\d", code) for code in codes)


def test_every_rule_file_holds_one_rule_that_is_registered():
    files = {path.stem for path in HOME.glob("*.py")} - {"__init__", "base", "settings"}
    assert files == {rule.__module__.rpartition(".")[2] for rule in RULES}


@each_rule
def test_code_name_class_and_file_agree(rule: type[Rule]):
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert rule.__name__ == "".join(word.capitalize() for word in rule.name.split("-"))
    path = HOME / (rule.name.replace("-", "_") + ".py")
    assert rule.__module__ == f"diagnose.rules.{path.stem}"
    assert path.read_text(encoding="utf-8").startswith(f'"""{rule.code} {rule.name}: ')


@each_rule
def test_docstring_has_every_heading(rule: type[Rule]):
    sections = rule.sections()
    assert list(sections) == ["", *HEADINGS]
    for heading, text in sections.items():
        assert text.endswith((".", "?")), f"{heading!r} is empty or no sentence: {text!r}"
    assert "\n\n" not in sections[""], "the opening is one sentence"


@each_rule
def test_file_is_short(rule: type[Rule]):
    path = HOME / (rule.name.replace("-", "_") + ".py")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize(("rule", "field"), THRESHOLDS, ids=lambda v: label(v) or getattr(v, "name", None))
def test_threshold_has_unit_bounds_and_source(rule: type[Rule], field: dataclasses.Field[float]):
    meta = field.metadata
    assert meta["unit"].strip()
    assert len(meta["source"].split()) > 1, "a source is a paper, or says which curves or reasons set the number"
    assert meta["low"] <= field.default <= meta["high"]
    assert meta["low"] < meta["high"]
    for outside in (meta["low"] - 1, meta["high"] + 1, float("nan")):
        with pytest.raises(ConfigError, match=rf"{rule.name}\.{field.name} must"):
            rule(**{field.name: outside})
    for wrong in (True, "3", None):
        with pytest.raises(ConfigError, match="must be a number"):
            rule(**{field.name: wrong})


@each_rule
def test_rule_that_warns_of_a_curve_says_how_often_it_is_meant_to_err(rule: type[Rule]):
    if rule.code < "CD5" and rule.severity is not Severity.INFO:
        assert re.fullmatch(r"(none|[1-9]e-\d+ an? (point|evaluation|run)): .+[^.]", rule.meant_false_alarms)


@each_rule
def test_rule_has_examples_of_both_kinds(rule: type[Rule]):
    assert len(rule.firing) >= 2
    assert len(rule.silent) >= 2
    words = [example.what for example in (*rule.firing, *rule.silent)]
    assert len(words) == len(set(words))


@each_rule
def test_rule_refers_to_rules_that_exist(rule: type[Rule]):
    assert set(rule.hushed_by) <= {other.name for other in RULES} - {rule.name}
    assert rule.kinds


def test_stop_policy_names_rules_that_exist():
    assert {rule.name for rule in RULES} >= verdict.STOPPING


@each_firing
def test_firing_example_fires_its_own_rule(rule: type[Rule], example: Example):
    report = examined(example, [rule()])
    assert not report.crashes
    assert {f.name for f in report.findings} == {rule.name}
    assert {f.code for f in report.findings} == {rule.code}


@each_silent
def test_silent_example_is_silent(rule: type[Rule], example: Example):
    report = examined(example, [rule()])
    assert not report.crashes
    assert not report.findings


@each_firing
def test_story_is_told_among_all_rules(rule: type[Rule], example: Example):
    report = examined(example)
    assert not report.crashes
    mine = [f for f in report.findings if f.name == rule.name]
    others = [f for f in report.findings if f.severity.rank >= rule.severity.rank]
    assert mine or others, "with all rules together nobody tells it"


@pytest.mark.parametrize(("rule", "example"), FIRING + SILENT, ids=label)
def test_findings_rest_on_evidence_and_lie_inside_the_run(rule: type[Rule], example: Example):
    steps = [row.step for row in example.rows()]
    most = {r.name: r.severity.rank for r in RULES}
    report = examined(example)
    for finding in report.findings:
        assert finding.evidence, finding.message
        for evidence in finding.evidence:
            assert evidence.holds(), evidence
            assert evidence.step is None or steps[0] <= evidence.step <= steps[-1]
        assert (0 if finding.code >= "CD8" else steps[0]) <= finding.first_step <= finding.last_step <= steps[-1]
        assert finding.severity.rank <= most[finding.name], "more serious than its rule declares"
        assert finding.status is Status.OPEN or finding.severity is not Severity.ERROR, "what is over is no error"
    keys = [f.key for f in report.findings]
    assert len(keys) == len(set(keys))


@each_firing
def test_messages_read_well(rule: type[Rule], example: Example):
    for finding in examined(example, [rule()]).findings:
        texts = [finding.message]
        if cure := finding.prescription:
            texts += [cure.why, *cure.do_not]
            assert cure.advice.endswith("."), cure.advice
            assert cure.advice[0].isupper()
            texts.append(cure.advice.rstrip("."))
        for text in texts:
            assert text == text.strip()
            assert text.isprintable()
            assert not text.endswith((".", ":", ",")), text
            assert not re.search(r"!|\bmight possibly\b|\b1 (points|logs|evaluations|steps)\b", text), text
        if finding.status is Status.OPEN:
            assert re.search(r"\d|\bno\b", finding.message), "says where, or how much"


@each_rule
def test_missing_metric_is_a_skip_not_silence(rule: type[Rule]):
    for need in rule.needs:
        names = need.split("|")
        for example in rule.firing:
            left = {k: v for k, v in example.curves.items() if not any(_matches(k, n) for n in names)}
            curves = {**left, "train/some_metric": [1.0] * max(map(len, example.curves.values()))}
            report = examined(dataclasses.replace(example, curves=curves), [rule()])
            assert not report.crashes
            assert [s.code for s in report.skips] == [rule.code]
            assert not report.findings


@each_rule
def test_other_kind_of_run_is_a_skip(rule: type[Rule]):
    kinds = {
        Kind.SUPERVISED: ["train/loss"],
        Kind.PREFERENCE: ["train/loss", "train/rewards/margins"],
        Kind.RL: ["train/loss", "train/reward"],
    }
    for kind, names in kinds.items():
        assert kind_of(names) is kind
        report = examined(Example("kind", {name: [0.5] * 4 for name in names}), [rule()])
        said = [s.reason for s in report.skips if "no meaning" in s.reason]
        assert bool(said) == (kind not in rule.kinds)


@each_firing
def test_examination_changes_no_input_and_repeats_itself(rule: type[Rule], example: Example):
    run = build_run(example.rows(), id="a", source="test", settings=example.settings, notes=notes_of(example))
    before = {name: (s.step.tolist(), repr(s.value.tolist())) for name, s in run.series.items()}
    settings, notes = dict(run.settings), run.notes
    first, second = examine(run), examine(run)
    assert repr(first) == repr(second)
    assert before == {name: (s.step.tolist(), repr(s.value.tolist())) for name, s in run.series.items()}
    assert (settings, notes) == (dict(run.settings), run.notes)


@each_rule
def test_watches_share_nothing(rule: type[Rule]):
    one = rule()
    for example in rule.firing:
        alone = examined(example, [rule()])
        assert repr(examined(example, [one])) == repr(alone), "a rule object carries state from run to run"


def test_rules_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RULES[0]().confirm = 3  # type: ignore[attr-defined,misc]  # that it fails is the test


def _matches(name: str, need: str) -> bool:
    return name.startswith(need[:-1]) if need.endswith("*") else name == need


def test_example_rows_leave_gaps_out():
    example = Example("gaps", {"train/loss": [1.0, None, 3.0], "epoch": [0.1, 0.2, 0.3]}, step=5)
    assert example.rows() == [Row(5, {"train/loss": 1.0}, 0.1), Row(15, {"train/loss": 3.0}, 0.3)]
