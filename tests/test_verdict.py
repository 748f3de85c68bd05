"""Findings to one word, one sentence and one stop decision."""

from __future__ import annotations

import pytest

from diagnose.curves import Curves
from diagnose.model import Best, Finding, Row, Severity, Skip, Status, StopDecision, Verdict
from diagnose.rules import RULES
from diagnose.verdict import STOPPING, StopPolicy, decide, headline, leading, verdict

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR


def finding(name="nan-loss", severity=ERROR, first=10, status=Status.OPEN, message="it went wrong"):
    return Finding("CD101", name, severity, "train/loss", first, first + 10, message, (), status)


GO = StopDecision(stop=False)
STOPPED = StopDecision(True, 30, finding("flat-loss"), None)
VITAL = next(rule for rule in RULES if rule.vital)
ORDINARY = next(rule for rule in RULES if not rule.vital)


@pytest.mark.parametrize(
    ("findings", "skips", "word"),
    [
        ([], [], Verdict.HEALTHY),
        ([finding(severity=ERROR)], [], Verdict.SICK),
        ([finding(severity=WARNING)], [], Verdict.WATCH),
        ([finding(severity=WARNING), finding(severity=ERROR)], [], Verdict.SICK),
        ([finding(severity=INFO)], [], Verdict.HEALTHY),
        ([finding(severity=ERROR, status=Status.RESOLVED)], [], Verdict.HEALTHY),
        ([], [Skip(VITAL.code, VITAL.name, "no loss")], Verdict.INCONCLUSIVE),
        ([], [Skip(ORDINARY.code, ORDINARY.name, "no metric")], Verdict.HEALTHY),
        ([finding("too-short", INFO)], [], Verdict.INCONCLUSIVE),
        ([finding("too-short", INFO), finding(severity=WARNING)], [], Verdict.WATCH),
        ([finding(severity=ERROR)], [Skip(VITAL.code, VITAL.name, "no loss")], Verdict.SICK),
    ],
)
def test_verdict(findings, skips, word):
    assert verdict(findings, skips, [VITAL(), ORDINARY()], GO) is word


def test_leading_finding_is_the_earliest_of_the_most_serious_open():
    late, early = finding(first=50), finding(first=20)
    others = [finding(severity=WARNING, first=1), finding(first=0, status=Status.RESOLVED), finding(severity=INFO, first=0)]
    assert leading([late, *others, early]) is early
    assert leading([finding(status=Status.RESOLVED)]) is None
    assert leading([]) is None


def test_headline_names_the_trouble_and_the_best_checkpoint():
    best = Best(40, 1.23456, "eval/loss")
    one = headline(Verdict.SICK, [finding()], [], best, GO)
    assert one == "nan-loss: it went wrong. Best checkpoint: step 40 (eval/loss 1.235)."
    more = headline(Verdict.SICK, [finding(), finding("x", WARNING), finding("y", INFO)], [], None, GO)
    assert more == "nan-loss: it went wrong; then x at step 10."
    story = [finding(first=40), finding("a", WARNING, 20), *(finding(n, WARNING, 50 + i) for i, n in enumerate("bcde"))]
    said = headline(Verdict.SICK, story, [], None, GO)
    assert said == "nan-loss: it went wrong; before it a at step 20; then b at step 50, c at step 51 and 2 more."
    assert headline(Verdict.HEALTHY, [finding(severity=INFO)], [], best, GO).startswith(
        "No trouble seen. Best checkpoint: step 40"
    )


def test_headline_says_why_it_is_inconclusive():
    skip = Skip(VITAL.code, VITAL.name, "the log has no train/loss")
    assert f"{VITAL.name} could not look: the log has no train/loss" in headline(Verdict.INCONCLUSIVE, [], [skip], None, GO)
    short = finding("too-short", INFO, message="2 points are too few")
    assert "2 points are too few" in headline(Verdict.INCONCLUSIVE, [short], [skip], None, GO)


def test_a_stop_for_what_passed_is_no_clean_bill_of_health():
    passed = finding("flat-loss", INFO, status=Status.RESOLVED)
    assert verdict([passed], [], [VITAL()], STOPPED) is Verdict.WATCH
    said = headline(Verdict.WATCH, [passed], [], None, STOPPED)
    assert said == "flat-loss at step 30 was reason enough to stop, but it passed."


def curves():
    seen = Curves()
    for step, loss in ((10, 2.0), (20, 1.5), (30, 1.9)):
        seen.add(Row(step, {"eval/loss": loss}))
    return seen


@pytest.mark.parametrize("name", sorted(STOPPING))
def test_open_errors_of_the_policy_stop(name):
    bad = finding(name)
    decision = decide([finding(name, WARNING), bad], curves(), StopPolicy())
    assert (decision.stop, decision.step, decision.because, decision.best_step) == (True, 30, bad, 20)


@pytest.mark.parametrize(
    "harmless",
    [
        finding(severity=WARNING),
        finding(status=Status.RESOLVED),
        finding("loss-spike"),
        finding("nan-eval"),
        finding("exploding-gradient"),
        finding("epoch-staircase"),
    ],
)
def test_nothing_else_stops(harmless):
    decision = decide([harmless], curves(), StopPolicy())
    assert (decision.stop, decision.step, decision.because) == (False, None, None)
    assert not decide([], curves(), StopPolicy()).stop


def test_policy_can_be_narrowed_and_widened():
    assert not decide([finding("nan-loss")], curves(), StopPolicy(frozenset())).stop
    assert decide([finding("loss-spike")], curves(), StopPolicy(frozenset({"loss-spike"}))).stop
    assert decide([finding("nan-loss")], Curves(), StopPolicy()).best_step is None
