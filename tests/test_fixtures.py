"""The recorded curves of `fixtures/`: what the doctor says of each is what a person who looked at it expects.

A gap that is known is asserted too, so that it leaves the file as soon as the doctor sees what it missed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diagnose.examination import Examination, examine
from diagnose.model import Finding, RateDirection, Report, Run, Severity, StopDecision, Verdict
from diagnose.names import TRAIN_LOSS
from diagnose.readers import read_tree
from diagnose.rules import RULES

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
IDS = sorted(p.relative_to(FIXTURES).with_suffix("").as_posix() for p in FIXTURES.glob("*/*.json"))
FILES = [FIXTURES / f"{id}.json" for id in IDS]
LARGEST_FILE, LARGEST_FOLDER = 60_000, 1_000_000

#: Rules that fixtures wait for and that are not there yet.
PLANNED: set[str] = set()
EXPECTABLE = {"verdict", "findings", "absent", "no_findings_above", "stop", "rate"}

each_fixture = pytest.mark.parametrize("path", FILES, ids=IDS)


def load(path: Path) -> dict[str, Any]:
    """The JSON of a fixture."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@cache
def run_of(path: Path) -> Run:
    """The one run that a fixture holds."""
    reading = read_tree([path])
    assert not reading.skipped
    assert len(reading.runs) == 1
    return reading.runs[0]


@cache
def report_of(path: Path) -> Report:
    """What the doctor says of it."""
    return examine(run_of(path))


def misses(report: Report, expect: Mapping[str, Any]) -> dict[str, str]:
    """Where a report differs from what is expected: the expectation that failed, and how."""
    found: dict[str, str] = {}
    said = ", ".join(f"{f.name}@{f.first_step} {f.severity} {f.status}" for f in report.findings) or "nothing"
    if "verdict" in expect and report.verdict not in expect["verdict"]:
        found["verdict"] = f"{report.verdict}, expected {' or '.join(expect['verdict'])}; found {said}"
    for names, span in expect.get("findings", {}).items():
        if not any(is_it(f, names.split("|"), span) for f in report.findings):
            found[f"findings.{names}"] = f"expected {span}; found {said}"
    for name in expect.get("absent", ()):
        if any(f.name == name for f in report.findings):
            found[f"absent.{name}"] = f"found {said}"
    if "no_findings_above" in expect:
        limit = Severity(expect["no_findings_above"]).rank
        above = [f"{f.name}@{f.first_step} {f.severity} {f.status}" for f in report.findings if f.severity.rank > limit]
        if above:
            found["no_findings_above"] = ", ".join(above)
    if "stop" in expect and not stops_well(report.stop, expect["stop"]):
        by = "" if report.stop.because is None else f" because of {report.stop.because.name}"
        found["stop"] = f"stopped: {report.stop.stop}, step {report.stop.step}{by}; expected {expect['stop']}"
    if "rate" in expect and rate_of(report) not in expect["rate"]:
        found["rate"] = f"{rate_of(report)}, expected {' or '.join(expect['rate'])}; found {said}"
    return found


def is_it(finding: Finding, names: list[str], span: Mapping[str, Any]) -> bool:
    """Whether a finding is one of `names`, begins where expected, and stands as expected."""
    return (
        finding.name in names
        and span["from"] <= finding.first_step <= span["to"]
        and finding.status == span.get("status", finding.status)
    )


def stops_well(stop: StopDecision, span: Mapping[str, int] | None) -> bool:
    """Whether a run that should be left alone was, or one that should end was ended in time and not too early."""
    if span is None:
        return not stop.stop
    return stop.step is not None and span["from"] <= stop.step <= span["to"]


def rate_of(report: Report) -> str:
    """Which way the learning rate should go; silence leaves it where it is."""
    found = report.learning_rate
    assert found is not None
    return "hold" if found.direction is RateDirection.UNKNOWN else found.direction.value


@each_fixture
def test_what_is_expected_is_found_and_known_gaps_are_still_gaps(path: Path):
    fixture = load(path)
    missed = misses(report_of(path), fixture["expect"])
    gaps = fixture.get("known_gaps", {})
    assert {k: v for k, v in missed.items() if k not in gaps} == {}
    assert set(gaps) - set(missed) == set(), "no gap any more: take it out of known_gaps"


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, set()),
        ({"verdict": ["HEALTHY"]}, {"verdict"}),
        ({"findings": {"zero-loss": {"from": 1, "to": 5}, "plateau|nan-loss": {"from": 82, "to": 84}}}, {"findings.zero-loss"}),
        ({"findings": {"nan-loss": {"from": 1, "to": 81}}}, {"findings.nan-loss"}),
        ({"findings": {"nan-loss": {"from": 82, "to": 84, "status": "resolved"}}}, {"findings.nan-loss"}),
        ({"absent": ["nan-loss", "zero-loss"]}, {"absent.nan-loss"}),
        ({"no_findings_above": "warning"}, {"no_findings_above"}),
        ({"no_findings_above": "error"}, set()),
        ({"stop": None}, {"stop"}),
        ({"stop": {"from": 90, "to": 96}}, {"stop"}),
        ({"rate": ["up"]}, {"rate"}),
    ],
)
def test_a_report_that_differs_is_told(changed: Mapping[str, Any], missed: set[str]):
    path = FIXTURES / "recorded" / "nan-unfiltered.json"
    assert set(misses(report_of(path), load(path)["expect"] | changed)) == missed


@each_fixture
def test_no_rule_crashes(path: Path):
    assert report_of(path).crashes == ()


@each_fixture
def test_each_piece_of_evidence_holds_and_lies_within_the_run(path: Path):
    report = report_of(path)
    for finding in report.findings:
        assert finding.evidence, finding.name
        assert all(e.holds() for e in finding.evidence), finding
        assert finding.first_step <= finding.last_step <= report.last_step


@each_fixture
def test_watching_live_gives_the_same_stop_at_the_same_step(path: Path):
    run, stop = run_of(path), report_of(path).stop
    exam = Examination(settings=run.settings, notes=run.notes)
    for row in run.rows():
        exam.feed(row)
        if exam.stop.stop:
            break
    # by its finding's key, not its evidence: NaN does not equal itself
    assert (exam.stop.stop, exam.stop.step, exam.stop.best_step) == (stop.stop, stop.step, stop.best_step)
    assert (exam.stop.because and exam.stop.because.key) == (stop.because and stop.because.key)


@each_fixture
def test_fixture_says_what_it_is_and_expects_what_can_be_found(path: Path):
    fixture = load(path)
    meta, expect = fixture["meta"], fixture["expect"]
    assert meta["origin"] == path.parent.name
    assert len(meta["what"].split()) > 3
    assert expect, "a fixture without an expectation shows nothing"
    assert set(expect) <= EXPECTABLE
    assert set(expect.get("verdict", ())) <= set(Verdict)
    assert set(expect.get("rate", ())) <= {"up", "hold", "down"}
    known = {rule.name for rule in RULES} | PLANNED
    for names, span in expect.get("findings", {}).items():
        assert set(names.split("|")) <= known
        assert span["from"] <= span["to"] <= fixture["global_step"]
    assert set(expect.get("absent", ())) <= known
    for key, why in fixture.get("known_gaps", {}).items():
        assert key.partition(".")[0] in expect
        assert len(why.split()) > 3, f"say why {key} is a gap"
    if meta["origin"] == "recorded":
        assert {"python", "torch", "transformers", "peft", "commit"} <= set(meta["env"])
    assert path.stat().st_size < LARGEST_FILE


def test_no_rule_is_waited_for_that_is_there():
    assert PLANNED.isdisjoint(rule.name for rule in RULES)


def test_the_folder_is_read_as_exactly_the_fixtures():
    reading = read_tree([FIXTURES])
    assert sorted(run.id for run in reading.runs) == IDS
    assert len(IDS) >= 40
    assert sum(path.stat().st_size for path in FILES) < LARGEST_FOLDER


def test_readme_lists_every_fixture():
    text = (FIXTURES / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith(("| `public/", "| `recorded/"))]
    assert sorted(row.split("`")[1] for row in rows) == IDS
    for row, fixture in ((row, load(FIXTURES / f"{row.split('`')[1]}.json")) for row in rows):
        assert fixture["meta"]["what"] in row
        for names in fixture["expect"].get("findings", {}):
            assert names.replace("|", " or ") in row


@cache
def record() -> ModuleType:
    """`fixtures/record.py` as a module: it is a script, in no package, with a sibling that it imports."""
    sys.path.insert(0, str(FIXTURES))
    spec = importlib.util.spec_from_file_location("fixtures_record", FIXTURES / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_record_lists_its_curves_without_loading_torch():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", FIXTURES / "record.py", "--list"], capture_output=True, text=True, check=True
    )
    listed = [line.split()[0] for line in done.stdout.splitlines()]
    assert sorted(listed) == sorted(path.stem for path in FIXTURES.glob("recorded/*.json"))
    assert not any(line.endswith(("torch", "transformers")) for line in done.stderr.splitlines())


def test_record_refuses_an_unknown_name(capsys: pytest.CaptureFixture[str]):
    assert record().main(["lora-lr7"]) == 2
    assert "unknown: lora-lr7; there are: lora-lr3e-4" in capsys.readouterr().err


def test_record_refuses_a_dirty_working_tree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("what_to_record.git_state", lambda files: ("abc1234", "M fixtures/record.py"))
    assert record().main(["masked-labels", "--out", str(tmp_path)]) == 2
    assert "M fixtures/record.py" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_recording_again_keeps_what_a_person_wrote(tmp_path: Path):
    module = record()
    recipe = next(r for r in module.RECIPES if r.name == "masked-labels")
    state = {"global_step": 1, "log_history": [{"step": 1, "loss": 0.0, "grad_norm": math.nan}]}
    path = module.save(recipe, state, {"torch": "1"}, tmp_path)
    written = {"expect": {"verdict": ["SICK"]}, "known_gaps": {"verdict": "for the sake of this test"}}
    path.write_text(json.dumps(load(path) | written))
    assert module.save(recipe, state, {"torch": "2"}, tmp_path) == path
    again = load(path)
    assert {k: again[k] for k in written} == written
    assert again["meta"]["env"] == {"torch": "2"}


@pytest.mark.train
@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft 0.21 under transformers 5.24
def test_a_curve_recorded_again_has_the_same_shape(tmp_path: Path):
    pytest.importorskip("transformers")
    module = record()
    recipe = next(r for r in module.RECIPES if r.name == "masked-labels")
    again = module.save(recipe, module.train(recipe), {}, tmp_path)
    kept = FIXTURES / "recorded" / again.name
    old, new = run_of(kept), run_of(again)
    assert {n: s.step.tolist() for n, s in new.series.items()} == {n: s.step.tolist() for n, s in old.series.items()}
    assert new.series[TRAIN_LOSS].value.tolist() == old.series[TRAIN_LOSS].value.tolist()
    # Random weights: other versions of torch may draw others, whose loss stays within a tenth of ln(256) = 5.5.
    assert new.series["eval/loss"].value == pytest.approx(old.series["eval/loss"].value, rel=0.1)
    assert misses(examine(new), load(kept)["expect"]) == misses(report_of(kept), load(kept)["expect"])
