"""Laws of the engine for every rule: no looking ahead, no memory of how rows came, no unit that only fits one data set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from walk import FIRING, SILENT, label, notes_of, told, watched

from diagnose.examination import examine
from diagnose.model import Row
from diagnose.names import TRAIN_LOSS, is_eval_loss
from diagnose.rows import build_run
from diagnose.rules import RULES, Example, Rule
from diagnose.rules.settings import SettingsRule

_quick = {"derandomize": True, "deadline": None, "database": None, "phases": (Phase.explicit, Phase.generate)}
laws = settings(max_examples=30, suppress_health_check=list(HealthCheck), **_quick)

each_rule = pytest.mark.parametrize("rule", [*RULES, None], ids=lambda r: label(r) or "all rules")
each_example = pytest.mark.parametrize(("owner", "example"), FIRING + SILENT, ids=label)

#: Rules that know a level of the loss in nats (guessing among n classes is ln n): another unit is another statement.
KNOWS_NATS = {"collapsed-loss", "flat-loss"}
#: Rules that count optimizer steps: the fp16 scaler halves its scale once per skipped step, and weights move by one
#: learning rate a step, so neither is a matter of logged points.
COUNTS_STEPS = {"hidden-nan", "flat-loss", "loss-divergence", "dpo-no-signal", "grpo-no-signal"}
#: Rules that hold the steps of the run against a plan or an interval that the settings count in steps.
KNOWS_SETTINGS = {rule.name for rule in RULES if issubclass(rule, SettingsRule)}
#: Rules about the first steps of a training, whose number says that they are the first.
KNOWS_THE_FIRST_STEP = {"reference-mismatch", "dpo-no-signal"}


def shape(kind: str, n: int, rng: np.random.Generator) -> list[float]:
    """A loss of n points that looks like one of the troubles, or like none."""
    t = np.arange(n) / n
    noise = rng.normal(0, 0.03, n)
    fall = 0.8 + 1.5 * np.exp(-5 * t)
    at = n // 2
    loss = {
        "fall": fall + noise,
        "constant": np.full(n, 1.5),
        "flat": 2.3 + noise,
        "spike": fall + noise + 6.0 * (np.arange(n) == at),
        "spikes": fall + noise + 4.0 * (np.arange(n) % 9 == 7),
        "climb": fall + noise + 6.0 * np.maximum(0.0, t - 0.5),
        "collapse": np.where(t < 0.5, fall, 7.5) + noise,
        "nan": np.where(t < 0.6, fall + noise, math.nan),
        "zero": np.where(t < 0.6, fall + noise, 0.0),
        "stairs": 2.0 - 0.6 * np.floor(4 * t) + noise,
        "noisier": fall + noise * (1 + 20 * t),
    }[kind]
    return [float(v) for v in loss]


Settings = Mapping[str, Any]
SHAPES = ["fall", "constant", "flat", "spike", "spikes", "climb", "collapse", "nan", "zero", "stairs", "noisier"]


@st.composite
def drawn_rows(draw: st.DrawFn) -> list[Row]:
    """Rows of a run: one shape of the training loss, with or without evaluation, gradient norm, rate and epoch."""
    n = draw(st.integers(1, 90))
    every = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    loss = shape(draw(st.sampled_from(SHAPES)), n, rng)
    other = shape(draw(st.sampled_from(SHAPES)), n, rng)
    grad = shape(draw(st.sampled_from(SHAPES)), n, rng)
    has = draw(st.lists(st.booleans(), min_size=4, max_size=4))
    step = draw(st.sampled_from([1, 10, 25]))
    rows = []
    for i in range(n):
        values = {TRAIN_LOSS: loss[i]}
        if has[0] and i % every == every - 1:
            values["eval/loss"] = other[i]
        if has[1]:
            values["train/grad_norm"] = abs(grad[i])
        if has[2]:
            values["train/lr"] = 2e-4 * (1 - i / n)
        rows.append(Row((i + 1) * step, values, 4 * (i + 1) / n if has[3] else None))
    return rows


def corpus_rows(kind: str, other: str, n: int = 80) -> list[Row]:
    """A full log: training loss of one shape, evaluation loss of another, gradient norm of either, over four epochs."""
    rng = np.random.default_rng(SHAPES.index(kind))
    loss, evals = shape(kind, n, rng), shape(other, n, rng)
    grad = evals if SHAPES.index(kind) % 2 else loss
    rows = []
    for i in range(n):
        values = {TRAIN_LOSS: loss[i], "train/grad_norm": abs(grad[i]) / 2, "train/lr": 2e-4 * (1 - i / n)}
        rows.append(Row(10 * (i + 1), values | ({"eval/loss": evals[i]} if i % 5 == 4 else {}), 4 * (i + 1) / n))
    return rows


def only(rule: type[Rule] | None) -> list[Rule] | None:
    return None if rule is None else [rule()]


def assert_live_equals_read(
    rows: Sequence[Row], rule: type[Rule] | None, cuts: Sequence[int], example: Example | None = None
) -> None:
    """Look at a live examination at the rows `cuts`, and compare with reading the log as it was then."""
    given_settings = example.settings if example else {}
    notes = notes_of(example) if example else []
    run = build_run(rows, id="run", source="live", settings=given_settings, notes=notes)
    exam = watched([], only(rule), given_settings, notes)
    for i, row in enumerate(rows):
        exam.feed(row)
        if i in cuts:
            then = examine(run.until(row.step), only(rule))
            now = exam.report()
            # The text of a Finding holds NaN, which equals nothing, so the texts are compared.
            for part in ("findings", "stop", "best", "verdict", "headline", "prescription", "skips"):
                assert repr(getattr(now, part)) == repr(getattr(then, part)), f"{part} at step {row.step}"
            assert not now.crashes
    assert repr(dataclasses.replace(exam.report(), notes=())) == repr(dataclasses.replace(examine(run, only(rule)), notes=()))


# Each law is checked three times: on every rule's own examples, where it is sure to wake; on a fixed corpus of shapes, by
# every rule alone; and on drawn runs, by all rules together.


def assert_unit_does_not_matter(rows: Sequence[Row], rule: type[Rule] | None, c: float, given_settings: Settings) -> None:
    """Powers of two for `c`, so that no digit is lost and the findings must be equal, not only close."""
    rules = [r for r in only(rule) or [r() for r in RULES] if r.name not in KNOWS_NATS]
    scaled = [_scaled(row, c) for row in rows]
    expected = told(watched(rows, rules, given_settings).report().findings)
    assert told(watched(scaled, rules, given_settings).report().findings) == expected


def _scaled(row: Row, c: float) -> Row:
    values = {k: v * c if k == TRAIN_LOSS or is_eval_loss(k) else v for k, v in row.values.items()}
    return Row(row.step, values, row.epoch)


def assert_steps_do_not_matter(
    rows: Sequence[Row], rule: type[Rule] | None, times: int, shift: int, given_settings: Settings
) -> None:
    """Renumbered steps give the same findings at the renumbered steps."""
    counting = (COUNTS_STEPS if times != 1 else set()) | (KNOWS_SETTINGS if times != 1 or given_settings else set())
    rules = [r for r in only(rule) or [r() for r in RULES] if r.name not in counting]
    rules = [r for r in rules if r.name not in KNOWS_THE_FIRST_STEP]
    moved = [dataclasses.replace(row, step=row.step * times + shift) for row in rows]
    findings = told(watched(rows, rules, given_settings).report().findings)
    expected = [(*f[:4], f[4] * times + shift, f[5] * times + shift) for f in findings]
    assert told(watched(moved, rules, given_settings).report().findings) == expected


def assert_nothing_disappears(rows: Sequence[Row], rule: type[Rule] | None, given_settings: Settings) -> None:
    """A finding made live may grow; its key stays. Looking at the report in between changes nothing."""
    exam, unwatched = watched([], only(rule), given_settings), watched(rows, only(rule), given_settings)
    known: dict[tuple[str, str, int], int] = {}
    for i, row in enumerate(rows):
        exam.feed(row)
        if i % 10 == 0:
            exam.report()
        now = {f.key: f.last_step for f in exam.findings}
        assert known.keys() <= now.keys()
        assert all(now[key] >= last for key, last in known.items())
        known = now
    assert repr(exam.report()) == repr(unwatched.report())


CORPUS = {f"{kind}, eval {other}": corpus_rows(kind, other) for kind in SHAPES for other in ("climb", "nan")}


def corpus_for(rule: type[Rule] | None) -> list[list[Row]]:
    """The whole corpus for all rules together; every third run, of either evaluation, for one alone."""
    return list(CORPUS.values())[:: 1 if rule is None else 3]


@each_example
def test_examples_read_as_they_were_seen_live(owner: type[Rule], example: Example):
    # A reader's note exists once the log is whole, so an example with notes is only looked at when it is.
    cuts = [] if example.note_kinds else range(len(example.rows()))
    assert_live_equals_read(example.rows(), owner, cuts, example)
    assert_live_equals_read(example.rows(), None, cuts[:: max(1, len(cuts) // 3)], example)


@each_example
def test_examples_obey_the_laws(owner: type[Rule], example: Example):
    rows = example.rows()
    for rule in (owner, None):
        assert_unit_does_not_matter(rows, rule, 2.0**-10, example.settings)
        assert_unit_does_not_matter(rows, rule, 2.0**10, example.settings)
        assert_steps_do_not_matter(rows, rule, 1, 1000, example.settings)
        assert_steps_do_not_matter(rows, rule, 4, 0, example.settings)
        more = [dataclasses.replace(row, step=rows[-1].step + row.step) for row in rows]
        assert_nothing_disappears([*rows, *more], rule, example.settings)


@each_rule
def test_corpus_reads_as_it_was_seen_live(rule: type[Rule] | None):
    for rows in corpus_for(rule):
        assert_live_equals_read(rows, rule, (len(rows) // 4, len(rows) * 5 // 8))


@each_rule
def test_corpus_obeys_the_laws(rule: type[Rule] | None):
    for rows in corpus_for(rule):
        assert_unit_does_not_matter(rows, rule, 2.0**-10, {})
        assert_steps_do_not_matter(rows, rule, 3, 10, {})
        assert_nothing_disappears(rows, rule, {})


@laws
@given(drawn_rows(), st.lists(st.integers(0, 89), max_size=3))
def test_reading_up_to_a_step_gives_what_was_seen_live(rows: list[Row], cuts: list[int]):
    assert_live_equals_read(rows, None, cuts)


@laws
@given(drawn_rows(), st.sampled_from([2.0**-10, 0.5, 2.0, 2.0**10]))
def test_unit_of_the_loss_does_not_matter(rows: list[Row], c: float):
    assert_unit_does_not_matter(rows, None, c, {})


@laws
@given(drawn_rows(), st.sampled_from([1, 2, 64]), st.sampled_from([0, 7, 10**6]))
def test_numbering_of_the_steps_does_not_matter(rows: list[Row], times: int, shift: int):
    assert_steps_do_not_matter(rows, None, times, shift, {})


@laws
@given(drawn_rows())
def test_more_rows_never_make_a_finding_disappear(rows: list[Row]):
    assert_nothing_disappears(rows, None, {})


@laws
@given(drawn_rows())
def test_evidence_holds_on_drawn_runs(rows: list[Row]):
    report = watched(rows).report()
    assert not report.crashes
    for finding in report.findings:
        assert finding.evidence
        assert all(e.holds() for e in finding.evidence), finding
        assert rows[0].step <= finding.first_step <= finding.last_step <= rows[-1].step


HOSTILE: dict[str, list[float]] = {
    "constant": [1.5] * 40,
    "NaN everywhere": [math.nan] * 40,
    "infinite": [math.inf] * 20 + [-math.inf] * 20,
    "huge": [1e300] * 40,
    "huge and growing": [1e290 * 1.7**i for i in range(40)],
    "huge of both signs": [1.7e308 * (-1) ** i for i in range(40)],
    "negative": [-2.0 - 0.01 * i for i in range(40)],
    "through zero": [1.0 - 0.05 * i for i in range(40)],
    "zero": [0.0] * 40,
    "minus zero": [-0.0] * 40,
    "tiny": [5e-324] * 40,
    "tiny and falling": [1e-300 * 0.5**i for i in range(40)],
    "one huge point": [1.0] * 20 + [1e308] + [1.0] * 19,
    "NaN now and then": [math.nan if i % 3 else 1.0 + 0.01 * i for i in range(40)],
    "one point": [1.0],
    "one NaN": [math.nan],
    "two points": [1.0, 1e9],
}
METRICS = [
    (TRAIN_LOSS,),
    ("eval/loss",),
    ("eval/a_loss", "eval/b_loss"),
    ("train/grad_norm", "train/lr"),
    (TRAIN_LOSS, "train/grad_norm", "train/lr", "eval/loss", "eval/f1"),
    (TRAIN_LOSS, "train/reward", "train/kl"),
    (TRAIN_LOSS, "train/rewards/margins", "eval/loss"),
    (
        *(TRAIN_LOSS, "train/rewards/margins", "train/rewards/chosen", "train/rewards/rejected", "train/logps/chosen"),
        *("train/rewards/accuracies", "eval/rewards/margins", "train/lr"),
    ),
    (
        *(TRAIN_LOSS, "train/reward", "train/reward_std", "train/kl", "train/completions/clipped_ratio"),
        *("train/rewards/a/mean", "train/rewards/b/mean", "train/completions/mean_length"),
    ),
    ("train/reward", "train/frac_reward_zero_std"),
]


@pytest.mark.parametrize("metrics", METRICS, ids="+".join)
@pytest.mark.parametrize("values", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("with_epoch", [True, False], ids=["epochs", "no epochs"])
def test_hostile_curves_crash_no_rule(metrics: tuple[str, ...], values: list[float], with_epoch: bool):
    rows = [Row(10 * (i + 1), dict.fromkeys(metrics, v), (i + 1) / 10 if with_epoch else None) for i, v in enumerate(values)]
    report = watched(rows).report()
    assert not report.crashes, report.crashes[0].traceback
    assert all(e.holds() for f in report.findings for e in f.evidence)


def test_empty_run_is_judged_without_a_crash():
    report = examine(build_run([], id="empty", source="test"))
    assert not report.crashes
    assert report.verdict.value == "INCONCLUSIVE"
    assert report.last_step == report.n_points == 0


@laws
@given(st.lists(st.tuples(*[st.floats(allow_nan=True, allow_infinity=True)] * 4), max_size=40))
def test_any_floats_crash_no_rule(values: list[tuple[float, ...]]):
    names = (TRAIN_LOSS, "train/grad_norm", "train/lr", "eval/loss")
    report = watched(Row(i, dict(zip(names, v, strict=True)), i / 7) for i, v in enumerate(values)).report()
    assert not report.crashes, report.crashes[0].traceback
    assert all(e.holds() for f in report.findings for e in f.evidence)


def test_corpus_reaches_most_rules():
    """A corpus that wakes nobody proves nothing; rules of settings, rewards and logs are woken by their examples only."""
    names = {f.name for rows in CORPUS.values() for f in watched(rows).report().findings}
    assert {"nan-loss", "hidden-nan", "nan-eval"} <= names
    of_the_curve = {rule.name for rule in RULES if rule.code < "CD5"}
    assert len(names & of_the_curve) >= len(of_the_curve) // 2, sorted(names)
