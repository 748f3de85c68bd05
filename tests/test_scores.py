"""The scores: figures that are kept are those of today or not better, and the page is made of them.

After a rule has changed for the better: `python fixtures/score.py --write`, and a line in the history of `fixtures/SCORES.md`.
"""

from __future__ import annotations

import gzip
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import healthy
import pytest
import score
import told
import truth

from diagnose.model import Row
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.readers import read_tree
from diagnose.rules import RULES

FIXTURES = Path(score.__file__).parent
KEPT: dict[str, Any] = json.loads(score.NUMBERS.read_text(encoding="utf-8"))
HELD_OUT: dict[str, Any] = json.loads(score.HELD_OUT.read_text(encoding="utf-8"))
LARGEST_FOLDER = 2_000_000
#: Drawn curves of each kind that the tests look at, the first ones: all of them take a minute.
FEW = 2


@cache
def today() -> dict[str, Any]:
    """The figures on the labelled runs."""
    return score.labelled()


@pytest.mark.parametrize("key", ["judged", "sick", "healthy", "quiet", "due"])
def test_labelled_runs_are_those_of_the_page(key: str):
    assert today()[key] == KEPT["labelled"][key]


@pytest.mark.parametrize("key", ["alarmed", "wrong_stops", "missed_stops", "early_stops"])
def test_fewer_is_better(key: str):
    assert today()[key] <= KEPT["labelled"][key]


@pytest.mark.parametrize("key", ["caught", "saved"])
def test_more_is_better(key: str):
    assert today()[key] >= KEPT["labelled"][key] - 0.005


@pytest.mark.parametrize("tag", truth.NAMED_BY)
def test_each_trouble_is_found_as_often_and_as_rightly(tag: str):
    (runs, found, false), (kept_runs, kept_found, kept_false) = (
        next(counts for name, *counts in figures["tags"] if name == tag) for figures in (today(), KEPT["labelled"])
    )
    assert runs == kept_runs
    assert 2 * found - false >= 2 * kept_found - kept_false, "a right finding weighs two false ones"


def test_reported_troubles_are_answered_as_well():
    kept = {(story.partition(":")[0], key) for story, key, _ in KEPT["gaps"]}
    missed = {(story.id, key): said for story in told.stories() for key, said in story.misses.items()}
    assert {where: said for where, said in missed.items() if where not in kept} == {}


def test_stories_expect_what_can_be_told():
    names = {rule.name for rule in RULES}
    stories = told.stories()
    assert len({story.id for story in stories}) == len(stories)
    for story in stories:
        assert story.expect
        assert set(story.expect) <= told.EXPECTABLE
        assert set(story.expect.get("named", ())) <= names, story.id
        assert set(story.expect.get("rate", ())) <= {"up", "down", "hold"}


def test_a_story_that_is_answered_wrong_is_told():
    story = next(s for s in told.stories() if s.id == "s124")
    assert not story.misses
    wrong = {"named": ["plateau"], "quiet": True, "stop": False, "rate": ["up"]}
    assert set(told.Story(story.id, story.what, story.verdict, wrong, story.report).misses) == set(wrong)


@pytest.mark.parametrize("kind", healthy.KINDS)
def test_drawn_healthy_curves_are_left_alone_as_often(kind: str):
    for number in range(FEW):
        curve = healthy.draw(kind, number)
        said = truth.outcome(curve.rows, curve.settings)
        kept = KEPT["drawn"]["kinds"][kind]
        assert said.stop is None or number in kept["stopped"], f"{kind} {number} is ended by {said.because}"
        assert not said.alarms or number in kept["alarmed"], f"{kind} {number}: {sorted(said.alarms)}"


def test_a_drawn_curve_is_always_the_same():
    one, again = healthy.draw("heavy tails (t3)", 3), healthy.draw("heavy tails (t3)", 3)
    assert one == again
    assert one.rows != healthy.draw("heavy tails (t3)", 4).rows
    losses = [row.values[TRAIN_LOSS] for row in one.rows if TRAIN_LOSS in row.values]
    assert all(math.isfinite(loss) and loss > 0 for loss in losses)


@pytest.mark.parametrize("kind", healthy.KINDS)
def test_a_drawn_curve_is_healthy(kind: str):
    curve = healthy.draw(kind, 0)
    losses = [row.values[TRAIN_LOSS] for row in curve.rows if TRAIN_LOSS in row.values]
    some = max(3, len(losses) // 5)
    assert sum(losses[-some:]) < sum(losses[:some]), "the loss falls"
    evals = [row.values[EVAL_LOSS] for row in curve.rows if EVAL_LOSS in row.values]
    assert [row.step for row in curve.rows] == sorted(row.step for row in curve.rows)
    assert not evals or min(evals) > 0


def test_the_page_is_made_of_the_figures():
    text = score.PAGE.read_text(encoding="utf-8")
    assert text == score.page(KEPT, HELD_OUT, score.history(text)), "run python fixtures/score.py --page"
    assert score.history(text), "the history is kept"


def test_known_gaps_of_fixtures_are_told_where_thresholds_are():
    text = (FIXTURES.parent / "docs" / "thresholds.md").read_text(encoding="utf-8")
    for path in FIXTURES.glob("*/*.json"):
        if json.loads(path.read_text(encoding="utf-8")).get("known_gaps"):
            assert f"`{path.parent.name}/{path.stem}`" in text


def test_labels_and_curves_are_of_the_same_runs():
    labels = truth.labels()
    runs = {run.id: run for run in truth.runs()}
    assert list(labels) == list(runs)
    assert all(labels[id].last_step >= 1 and runs[id].series for id in labels)


def test_curves_hold_numbers_only_and_are_packed_the_same_everywhere():
    path = FIXTURES / "labelled" / "curves.jsonl.gz"
    packed = path.read_bytes()
    assert packed[3] == 0, "no file name"
    assert packed[4:8] == b"\0\0\0\0", "no time of packing"
    for state in map(json.loads, gzip.decompress(packed).splitlines()):
        assert all(isinstance(value, int | float) for row in state["log_history"] for value in row.values())
    assert sum(p.stat().st_size for p in path.parent.iterdir()) < LARGEST_FOLDER


def test_what_is_measured_on_is_no_log_for_the_readers():
    reading = read_tree([FIXTURES])
    assert not reading.skipped
    assert {run.id.partition("/")[0] for run in reading.runs} == {"public", "recorded"}


def test_score_counts_as_written():
    def label(*tags: str, stop: str = "no", stop_from: int | None = None, maybe: str = "") -> truth.Label:
        onset = {tag: 40 for tag in tags if tag in truth.SICK}
        return truth.Label(frozenset(tags), frozenset(maybe.split()), onset, stop, stop_from, 100)

    def said(*names: str, stop: int | None = None, loud: bool = True) -> truth.Outcome:
        return truth.Outcome(frozenset(names), frozenset(names if loud else ()), stop=stop)

    labels = {
        "found": label("memorization", stop="yes", stop_from=50),
        "missed": label("memorization", stop="yes", stop_from=50),
        "early": label("diverged", stop="yes", stop_from=50),
        "alarmed": label("healthy"),
        "excused": label("healthy", maybe="spike"),
        "quiet": label("healthy"),
        "no one could tell": label("unjudgeable"),
    }
    outcomes = {
        "found": said("memorization", stop=75),
        "missed": said(),
        "early": said("loss-divergence", stop=30),
        "alarmed": said("loss-divergence", stop=80),
        "excused": said("loss-spike"),
        "quiet": said("plateau", loud=False),
        "no one could tell": said("nan-loss", stop=1),
    }
    s = truth.score(outcomes, labels)
    assert (s.judged, s.sick, s.caught, s.healthy, s.alarmed) == (6, 3, 2, 3, 1)
    assert s.tags["memorization"] == (2, 1, 0)
    assert s.tags["diverged"] == (1, 1, 1)
    assert s.tags["plateau"] == (0, 0, 1)
    assert (s.quiet, s.wrong_stops, s.due, s.missed_stops, s.early_stops) == (3, 1, 3, 1, 1)
    assert s.saved == pytest.approx(0.5 / 3)
    assert s.by_rule == {"loss-divergence": (1, 1), "loss-spike": (1, 1), "plateau": (0, 1)}


def test_in_reinforcement_learning_the_troubles_of_the_loss_are_allowed_not_required():
    row = {"tags": ["rl", "flat"], "maybe": [], "onset": {}, "stop": "no", "stop_from": None, "last_step": 9}
    label = truth.Label.of(row)
    assert label.tags == {"rl"}
    assert label.maybe == {"flat"}


def test_outcome_keeps_what_was_told_and_passed():
    losses = [2.0, 1.8, 1.7, 1.62, 1.55, 1.5, 1.46, 1.42, 9.0, 1.4, 1.36, 1.35]
    said = truth.outcome([Row(10 * (i + 1), {TRAIN_LOSS: loss}) for i, loss in enumerate(losses)], {})
    assert "loss-spike" in said.told
    assert "loss-spike" in said.found
    assert "loss-spike" not in said.alarms
