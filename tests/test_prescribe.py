"""The laws of a prescription: one factor of 3 at a time, inside the usual range, at most two settings."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from walk import FIRING, examined, label

from diagnose import prescribe
from diagnose.curves import Curves
from diagnose.model import Change, Finding, Kind, Row, Severity, Status
from diagnose.rules import Example, Rule

quick = settings(max_examples=100, derandomize=True, deadline=None, database=None)
rates = st.floats(1e-8, 1.0)
methods = st.sampled_from(["lora", "qlora", "full", None, "other"])


def curves(rate: float | None = None, method: str | None = None, **more: object) -> Curves:
    known = {"learning_rate": rate, "method": method, **more}
    return Curves({k: v for k, v in known.items() if v is not None})


@pytest.mark.parametrize(
    ("method", "rate", "times", "after"),
    [
        ("lora", 2e-4, 1, 1e-4),  # a third would be 6.7e-5: held at the low end
        ("lora", 2e-4, 2, 1e-4),
        ("lora", 5e-4, 1, 1.7e-4),
        ("lora", 1e-3, 1, 3.3e-4),
        ("lora", 3e-3, 2, 3.3e-4),
        ("qlora", 2e-4, 1, 1e-4),
        ("lora", 1e-4, 1, 3.3e-5),  # already at the low end: lowered all the same, with a hint
        ("lora", 5e-5, 1, 1.7e-5),
        ("full", 5e-5, 1, 1.7e-5),
        ("full", 2e-5, 1, 1e-5),
        ("full", 1e-3, 1, 3.3e-4),
        (None, 2e-4, 1, 6.7e-5),
        (None, 2e-4, 2, 2.2e-5),
    ],
)
def test_lower_rate(method, rate, times, after):
    cure = prescribe.lower_rate(curves(rate, method), "because", times=times)
    (change,) = cure.changes
    assert (change.setting, change.before, change.after) == ("learning_rate", rate, after)
    # `after` shows two digits; the factor is the one meant: 3 or 9, unless the range holds the rate.
    assert change.factor == pytest.approx(after / rate, rel=0.03)
    assert change.factor == pytest.approx(3.0**-times) or after == prescribe.RANGES[method][0]
    assert f"from {rate:g} to {after:g}" in cure.advice


@pytest.mark.parametrize(
    ("method", "rate", "after"),
    [
        ("lora", 1e-5, 3e-5),
        ("lora", 1e-4, 3e-4),
        ("lora", 2e-4, 5e-4),  # three times would be 6e-4: held at the high end
        ("full", 1e-6, 3e-6),
        ("full", 2e-5, 5e-5),
        (None, 2e-4, 6e-4),
    ],
)
def test_raise_rate(method, rate, after):
    (change,) = prescribe.raise_rate(curves(rate, method), "because").changes
    assert (change.before, change.after) == (rate, after)


@pytest.mark.parametrize(("method", "rate"), [("lora", 5e-4), ("lora", 4.5e-4), ("lora", 2e-3), ("full", 5e-5)])
def test_rate_at_the_high_end_is_not_raised(method, rate):
    cure = prescribe.raise_rate(curves(rate, method), "because")
    assert not cure.changes
    assert cure.advice.startswith("Train for more steps")
    assert "do not raise the learning rate" in cure.do_not


@quick
@given(rates, methods, st.sampled_from([1, 2]))
def test_a_lowered_rate_is_a_third_or_a_ninth_or_the_low_end(rate: float, method: str | None, times: int):
    cure = prescribe.lower_rate(curves(rate, method), "because", times=times)
    (change,) = cure.changes
    low = prescribe.RANGES.get(method or "", (0.0, math.inf))[0]
    # Two digits are kept, so the factor is off by at most half a unit of the second.
    is_factor = change.after == pytest.approx(rate / 3**times, rel=0.05)
    assert is_factor or (change.after == low and rate / 3**times < low < rate)
    assert change.after < rate


@quick
@given(rates, methods)
def test_a_raised_rate_is_threefold_or_the_high_end(rate: float, method: str | None):
    high = prescribe.RANGES.get(method or "", (0.0, math.inf))[1]
    for change in prescribe.raise_rate(curves(rate, method), "because").changes:
        assert change.after == pytest.approx(rate * 3, rel=0.05) or (change.after == high and rate * 3 > high > rate)


def test_unknown_rate_gets_the_factor_alone():
    for times, factor in ((1, 1 / 3), (2, 1 / 9)):
        (change,) = prescribe.lower_rate(curves(), "because", times=times).changes
        assert (change.before, change.after, change.factor) == (None, None, pytest.approx(factor))
    (change,) = prescribe.raise_rate(curves(), "because").changes
    assert (change.before, change.after, change.factor) == (None, None, 3.0)


def test_low_end_warns_of_other_causes():
    hint = " ".join(prescribe.lower_rate(curves(1e-4, "lora"), "because").do_not)
    assert "8-bit optimizer" in hint
    assert "8-bit" not in " ".join(prescribe.lower_rate(curves(5e-4, "lora"), "because").do_not)


def test_known_rate_is_the_configured_one_then_the_highest_logged():
    seen = curves()
    assert prescribe.known_rate(seen) is None
    for step, rate in enumerate([0.0, 1e-4, 2e-4, 1e-4, math.nan, math.inf]):
        seen.add(Row(step, {"train/lr": rate}))
    assert prescribe.known_rate(seen) == 2e-4
    seen.settings = {"learning_rate": 3e-4}
    assert prescribe.known_rate(seen) == 3e-4
    for odd in (True, "3e-4", 0, -1.0):
        seen.settings = {"learning_rate": odd}
        assert prescribe.known_rate(seen) == 2e-4


def test_other_cause_leaves_the_rate_alone():
    cure = prescribe.other_cause("Look.", "because", Change("max_length", 512, 1024, 2.0))
    assert [c.setting for c in cure.changes] == ["max_length"]
    assert "do not change the learning rate" in cure.do_not[0]


@pytest.mark.parametrize(("best", "planned", "after"), [(1.4, 3, 2), (2.0, 3, 2), (0.2, 3, 1), (0.99, 10, 1)])
def test_fewer_epochs(best, planned, after):
    cure = prescribe.fewer_epochs(curves(num_train_epochs=planned), best, "because")
    assert [(c.setting, c.before, c.after) for c in cure.changes] == [("num_train_epochs", planned, after)]


@pytest.mark.parametrize(
    ("best", "planned"), [(2.5, 3), (None, 3), (1.0, None), (1.0, 1), (1.0, "3"), (1.0, True), (1.0, 10**9)]
)
def test_fewer_epochs_without_a_number_still_advises(best, planned):
    cure = prescribe.fewer_epochs(curves(num_train_epochs=planned), best, "because")
    assert not cure.changes
    assert cure.advice.startswith("Use the best checkpoint")


def finding(severity, first, name, *, status=Status.OPEN, cure="c"):
    made = None if cure is None else prescribe.other_cause(f"Do {name}.", "because")
    return Finding("CD" + name, name, severity, "train/loss", first, first, "m", (), status, made)


def test_run_gets_the_cure_of_its_earliest_most_serious_open_finding():
    w, e, i = Severity.WARNING, Severity.ERROR, Severity.INFO
    chosen = prescribe.for_run
    assert chosen([], curves()) is None
    assert chosen([finding(i, 1, "info")], curves()) is None
    assert chosen([finding(e, 1, "past", status=Status.RESOLVED)], curves()) is None
    assert chosen([finding(e, 1, "dumb", cure=None), finding(w, 5, "mild")], curves()).advice == "Do mild."
    mixed = [finding(w, 1, "mild"), finding(e, 9, "late"), finding(e, 5, "early"), finding(i, 0, "info")]
    assert chosen(mixed, curves()).advice == "Do early."


def test_run_is_sent_back_to_its_best_checkpoint():
    seen = curves(2e-4)
    for step, loss in ((10, 2.0), (20, 1.5), (30, 1.7)):
        seen.add(Row(step, {"eval/loss": loss}))
    assert prescribe.for_run([finding(Severity.ERROR, 30, "x")], seen).checkpoint_step == 20
    assert prescribe.for_run([finding(Severity.ERROR, 30, "x")], curves()).checkpoint_step is None


@pytest.mark.parametrize(
    ("known", "changes", "folder"),
    [
        ({"method": "lora", "lora_r": 16}, [Change("learning_rate", 2e-4, 6.7e-5)], "runs/lora-r16-lr6.7e-5"),
        ({"method": "full"}, [Change("learning_rate", 3e-5, 1e-5)], "runs/full-lr1e-5"),
        ({}, [Change("num_train_epochs", 3, 2)], "runs/run-ep2"),
        ({}, [Change("learning_rate", 0.3, 0.1), Change("max_grad_norm", 1.0, 0.5)], "runs/run-lr0.1-clip0.5"),
        ({}, [Change("eval_strategy", "no", "steps")], "runs/run-eval_strategysteps"),
        ({}, [Change("learning_rate", None, None, 1 / 3)], None),
        ({}, [], None),
    ],
)
def test_output_dir_carries_the_changes(known, changes, folder):
    assert prescribe.output_dir(Curves(known), changes) == folder


@pytest.mark.parametrize(("rule", "example"), FIRING, ids=label)
def test_what_rules_prescribe_obeys_the_laws(rule: type[Rule], example: Example):
    for known in ({}, {"learning_rate": 1e-3, "method": "lora"}, {"learning_rate": 2e-4, "method": "lora"}):
        with_rate = Example(example.what, example.curves, example.step, {**example.settings, **known}, example.note_kinds)
        report = examined(with_rate, [rule()])
        for cure in [f.prescription for f in report.findings if f.prescription]:
            assert len(cure.changes) <= 2
            assert cure.why
            for change in cure.changes:
                if change.setting != "learning_rate":
                    continue
                assert not re.search(r"do not change the learning rate", " ".join(cure.do_not))
                if change.after is None:
                    assert round(change.factor if change.factor > 1 else 1 / change.factor, 9) in (3, 9)
                    continue
                ends = prescribe.RANGES.get(str(report.settings.get("method")), prescribe.RANGES["lora"])
                thirds = [change.before * 3.0**k for k in (-2, -1, 1)]
                assert any(change.after == pytest.approx(t, rel=0.05) for t in thirds) or change.after in ends
        if report.prescription and report.kind is not Kind.RL:
            assert any(f.severity is not Severity.INFO and f.status is Status.OPEN for f in report.findings)
