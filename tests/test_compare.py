"""Comparing runs: what is called better is better beyond noise, and what cannot be told is not told."""

import dataclasses
import io
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import snapshot
from rich.console import Console

from diagnose import cli
from diagnose.compare import Comparison, compare
from diagnose.loss_differences import Point, difference
from diagnose.model import Row, Run, Setting
from diagnose.rate_sweep import Trial, sweep_of
from diagnose.readers import read, read_tree
from diagnose.report.compare import ComparisonView
from diagnose.report.compare_json import comparison_to_dict
from diagnose.report.json import dumps
from diagnose.rows import build_run
from diagnose.settings_changed import changed_settings, from_names, settings_of

RECORDED = Path(__file__).parent.parent / "fixtures" / "recorded"
TOLD: dict[str, Setting] = {"learning_rate": 2e-4, "method": "lora", "lora_r": 16, "lora_alpha": 32}


def made(
    id: str,
    floor: float = 1.0,
    *,
    noise: float = 0.0,
    seed: int = 0,
    evals: int = 10,
    steps: int = 100,
    lost_at: int = 10**9,
    **settings: Setting,
) -> Run:
    """A run whose losses fall from 3 to a floor; its training loss is lost from a step on."""
    random = np.random.default_rng(seed)

    def loss(step: int) -> float:
        return float((floor + (3 - floor) * math.exp(-step / 25)) * math.exp(random.normal(0, noise)))

    rows = []
    for step in range(1, steps + 1):
        values = {"train/loss": loss(step) if step < lost_at else math.nan}
        if evals and step % (steps // evals) == 0:
            values["eval/loss"] = loss(step) if step < lost_at else math.nan
        rows.append(Row(step, values))
    return build_run(rows, id=id, source=f"{id}.json", settings=TOLD | settings)


def shown(found: Comparison, file: io.StringIO | None = None) -> str:
    page = io.StringIO() if file is None else file
    Console(file=page, width=80, color_system=None, force_terminal=False).print(ComparisonView(found))
    return page.getvalue()


class Ascii(io.StringIO):
    """A terminal that can show ASCII alone, and fails on anything else."""

    encoding = "ascii"

    def write(self, text: str) -> int:
        text.encode("ascii")
        return super().write(text)


def recorded(*names: str) -> list[Run]:
    return [run for name in names for run in read(RECORDED / f"{name}.json")]


SWEEP = tuple(f"lora-lr{rate}" for rate in ("1e-1", "1e-2", "1e-3", "3e-1", "3e-2", "3e-3", "3e-4"))


# What changed


def test_settings_that_follow_from_others_and_those_of_the_log_do_not_count() -> None:
    a = made("a", per_device_train_batch_size=4, total_train_batch_size=4, max_steps=400, num_train_epochs=1, eval_steps=10)
    b = made(
        "b", lora_r=32, lora_alpha=64, per_device_train_batch_size=8, total_train_batch_size=8, max_steps=200,
        num_train_epochs=1, eval_steps=20,
    )  # fmt: skip
    changed = changed_settings([settings_of(a), settings_of(b)])
    assert {c.setting for c in changed if c.counts} == {"lora_r", "per_device_train_batch_size"}
    assert {c.setting for c in changed if not c.counts} == {"lora_alpha", "total_train_batch_size", "max_steps", "eval_steps"}
    assert next(c for c in changed if c.setting == "lora_r").values == (16, 32)


def test_the_same_batch_in_other_pieces_is_no_change_that_counts() -> None:
    batch = {"total_train_batch_size": 16}
    one = made("a", per_device_train_batch_size=4, gradient_accumulation_steps=4, **batch)
    other = made("b", per_device_train_batch_size=16, gradient_accumulation_steps=1, **batch)
    changed = compare([one, other]).changed
    assert len(changed) == 2
    assert not any(c.counts for c in changed)


def test_more_steps_with_the_same_epochs_and_batch_mean_other_data() -> None:
    changed = compare([made("a", max_steps=100), made("b", max_steps=200)]).changed
    assert [(c.setting, c.counts) for c in changed] == [("max_steps", True)]


def test_a_setting_that_only_one_run_tells_has_not_changed() -> None:
    assert compare([made("a", weight_decay=0.1), made("b")]).changed == ()


def test_settings_of_any_size_and_kind_are_compared() -> None:
    found = compare([made("a", x=10**400, y=True, z="a"), made("b", x=10**400 + 1, y=False, z="b", lora_r=10**400)])
    assert {c.setting for c in found.changed} == {"x", "y", "z", "lora_r"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lora-r16-lr2e-4", {"method": "lora", "lora_r": 16, "learning_rate": 2e-4}),
        ("QLoRA_lr=0.0002,bs8,seed3", {"method": "qlora", "learning_rate": 2e-4, "batch_size": 8, "seed": 3}),
        ("run-lr6.7e-5-ep3", {"learning_rate": 6.7e-5, "num_train_epochs": 3}),
        ("explorer16-r", {}),
        ("checkpoint-300", {}),
    ],
)
def test_names_of_folders_tell_settings(name: str, told: dict[str, Setting]) -> None:
    assert from_names([name]) == told


def test_the_rate_is_the_configured_one_then_the_one_in_the_name_then_the_logged_one() -> None:
    def rated(id: str, peak: float | None, **settings: Setting) -> Run:
        rows = [Row(i, {"train/loss": 1.0} | ({} if peak is None else {"train/lr": peak * i / 10})) for i in range(1, 11)]
        return build_run(rows, id=id, source="x.json", settings=settings)

    assert settings_of(rated("lr1e-3", 5e-4, learning_rate=2e-4)).rate == 2e-4
    assert settings_of(rated("lr1e-3", 9.7e-4)).rate == 1e-3
    assert settings_of(rated("lr1e-3", None)).rate == 1e-3
    assert settings_of(rated("a", 9.7e-4)).rate == 9.7e-4
    renamed = settings_of(rated("lr1e-3", 1e-4))
    assert (renamed.rate, renamed.named_rate) == (1e-4, 1e-3)
    # the highest of a few logged rates is below the peak, so these two may be one
    assert compare([rated("a", 9.7e-4), rated("b", 8.6e-4)]).changed == ()
    assert [c.setting for c in compare([rated("a", 9.7e-4), rated("b", 3e-4)]).changed] == ["learning_rate"]


def test_more_than_two_changes_at_once_are_warned_of() -> None:
    base = made("a")
    assert compare([base, made("b", learning_rate=6e-4, warmup_steps=9, seed=3)]).warning is None
    many = compare([made("a", weight_decay=0.0), made("b", learning_rate=6e-4, lora_r=64, weight_decay=0.1)]).warning
    assert many is not None
    assert many.startswith("3 settings changed at once (learning_rate, ")


def test_runs_that_lead_from_one_to_the_other_in_small_steps_are_not_warned_of() -> None:
    ends = [made("a"), made("c", learning_rate=6e-4, lora_r=64, lora_alpha=16)]
    assert compare(ends).warning is not None
    assert compare([*ends, made("b", learning_rate=6e-4)]).warning is None
    far = made("d", learning_rate=1e-5, lora_r=4, lora_alpha=99)
    warned = compare([*ends, made("b", learning_rate=6e-4), far]).warning
    assert warned is not None
    assert " and d, the nearest" in warned


# Which is better


def test_the_lower_evaluation_loss_is_better_and_its_best_checkpoint_is_named() -> None:
    better, worse = made("good", 1.0, noise=0.01), made("bad", 1.5, noise=0.01, seed=1, learning_rate=6e-4)
    found = compare([worse, better]).better
    assert found is not None
    values = better.series["eval/loss"].value
    assert (found.id, found.over, found.metric) == ("good", "bad", "eval/loss")
    assert (found.value, found.step) == (values.min(), better.series["eval/loss"].step[values.argmin()])
    assert found.margin == pytest.approx(worse.series["eval/loss"].value.min() - values.min())
    assert 0 < found.noise < found.margin


def test_the_last_checkpoint_decides_nothing() -> None:
    """The memorizing run ends far above the other one, but was lower at its best."""

    def fed(id: str, evals: Sequence[float]) -> Run:
        rows = [Row(10 * (i + 1), {"train/loss": 2.0 - i / 10, "eval/loss": v}) for i, v in enumerate(evals)]
        return build_run(rows, id=id, source=f"{id}.json")

    found = compare([fed("u", [2.0, 1.5, 1.2, 1.0, 1.3, 1.7, 2.2, 2.8]), fed("flat", [2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3])])
    assert found.better is not None
    assert (found.better.id, found.better.step) == ("u", 40)
    assert found.entries[found.differences[1].lowest or 0].report.id == "flat"
    assert found.differences[1].kind == "end"


def test_runs_that_differ_by_noise_alone_are_seldom_told_apart() -> None:
    pairs = [compare([made("a", noise=0.04, seed=2 * s), made("b", noise=0.04, seed=2 * s + 1)]) for s in range(40)]
    assert sum(found.better is not None for found in pairs) <= 2
    within = next(found for found in pairs if found.better is None)
    assert set(within.leaders) == {"a", "b"}
    assert shown(within).startswith("Within noise: ")


def test_a_clear_difference_is_told_through_the_noise() -> None:
    pairs = [compare([made("a", noise=0.02, seed=2 * s), made("b", 1.2, noise=0.02, seed=2 * s + 1)]) for s in range(20)]
    assert sum(found.better is not None and found.better.id == "a" for found in pairs) >= 18


def test_two_of_three_may_be_level_and_better_than_the_third() -> None:
    found = compare([made("a", 1.0), made("b", 1.003, learning_rate=1e-4), made("c", 1.6, learning_rate=1e-5)])
    assert (found.better, set(found.leaders)) == (None, {"a", "b"})
    assert "the others are worse" in shown(found)


def test_identical_runs_are_level_and_said_to_be_one() -> None:
    found = compare([made("a"), made("b")])
    assert (found.better, found.changed, found.leaders) == (None, (), ("a", "b"))
    assert all(d.is_within_noise for d in found.differences)
    assert any("holds the same losses" in text for text in found.cautions)
    assert not any("the same losses" in text for text in compare([made("a"), made("b", 1.1)]).cautions)


def test_without_evaluations_training_losses_are_compared_with_care() -> None:
    found = compare([made("a", 1.0, evals=0), made("b", 1.5, evals=0, learning_rate=1e-4)])
    assert (found.better, found.leaders) == (None, ())
    assert [(d.metric, d.lowest, d.level) for d in found.differences] == [("train/loss", 0, (0,))]
    assert any("only training losses can be compared" in text for text in found.cautions)
    assert "cannot be told; train/loss at step 100 is lowest, beyond noise, in a" in " ".join(shown(found).split())


def test_a_run_without_evaluations_is_not_ranked_among_those_with() -> None:
    found = compare([made("a", 1.0), made("b", 1.5, learning_rate=1e-4), made("c", 0.5, evals=0, lora_r=8)])
    assert found.better is not None
    assert (found.better.id, found.better.over) == ("a", "b")
    assert "without a finite eval/loss, so not ranked: c" in found.cautions
    assert compare([made("a"), made("c", evals=0)]).better is None


def test_a_lost_run_is_worse_than_any_and_breaks_nothing() -> None:
    found = compare([made("nan", lost_at=5, learning_rate=1e-1), made("fine")])
    assert found.better is not None
    assert (found.better.id, found.better.over, found.better.margin) == ("fine", None, math.inf)
    assert found.entries[0].report.verdict.value == "SICK"
    told = json.loads(dumps(comparison_to_dict(found)))
    assert told["better"]["margin"] == "Infinity"
    assert told["differences"][0]["values"][0] == "NaN"
    both = compare([made("a", lost_at=5), made("b", lost_at=6)])
    assert (both.better, both.leaders) == (None, ())
    assert "cannot be told" in shown(both)


def test_a_hidden_nan_does_not_look_like_the_lowest_training_loss() -> None:
    found = compare(recorded("hidden-nan", "lora-lr1e-2"))
    level = next(d for d in found.differences if d.metric == "train/loss")
    assert level.lowest == 1
    assert math.isnan(level.points[0].value)


def test_runs_of_unequal_length_are_also_compared_at_equal_steps() -> None:
    short, long = made("short", 1.0, steps=100), made("long", 0.8, steps=200, evals=20, learning_rate=1e-4)
    found = compare([short, long])
    kinds = [(d.kind, d.metric) for d in found.differences]
    assert kinds == [("best", "eval/loss"), ("end", "eval/loss"), ("equal-steps", "eval/loss"), ("equal-steps", "train/loss")]
    assert [{p.step for p in d.points if p} for d in found.differences[2:]] == [{100}, {100}]


def test_a_run_that_wins_by_going_on_longer_is_told() -> None:
    fast, slow = made("fast", 1.0, steps=60, evals=6), made("slow", 0.7, steps=300, evals=30)
    rows = [Row(r.step, {k: v + 0.4 * (r.step < 150) for k, v in r.values.items()}) for r in slow.rows()]
    found = compare([fast, build_run(rows, id="slow", source="slow.json", settings=TOLD)])
    assert found.better is not None
    assert found.better.id == "slow"
    assert "at step 60, the last at which all were evaluated, fast is lower" in found.cautions


def test_what_does_not_mean_the_same_is_not_ranked() -> None:
    rewarded = build_run([Row(i, {"train/loss": 0.1, "train/reward": 1.0}) for i in range(1, 20)], id="grpo", source="g.json")
    mixed = compare([made("a"), rewarded])
    assert (mixed.better, mixed.differences) == (None, ())
    assert "different kinds" in mixed.cautions[0]
    assert "compare the rewards" in compare([rewarded, rewarded]).cautions[0]


ODD = {
    "nothing": [],
    "losses below 0": [{"train/loss": -1.0 - i, "eval/loss": -2.0} for i in range(12)],
    "zeros": [{"train/loss": 0.0, "eval/loss": 0.0}] * 12,
    "far too large": [{"train/loss": 1e308, "eval/loss": 1e308}] * 12,
    "far too small": [{"train/loss": 1e-308, "eval/loss": 5e-324}] * 12,
    "infinite": [{"train/loss": math.inf, "eval/loss": -math.inf}] * 12,
    "evaluations alone": [{"eval/loss": 1.0}] * 12,
    "several sets": [{"train/loss": 1.0, "eval/x_loss": 1.0, "eval/y_loss": 2.0}] * 12,
}


@pytest.mark.parametrize("rows", ODD.values(), ids=ODD)
def test_odd_runs_break_nothing(rows: list[dict[str, float]]) -> None:
    rates: tuple[Setting, ...] = (1e-4, 5e-324, "high", 9e5)
    odd = [
        build_run([Row(i, r) for i, r in enumerate(rows)], id=f"\x1b[1m{k}", source="x", settings={"learning_rate": rate})
        for k, rate in enumerate(rates)
    ]
    found = compare([*odd, made("a"), made("b", 1.5, learning_rate=1e-3)])
    text = shown(found)
    assert all(c == "\n" or c.isprintable() for c in text)
    assert max(map(len, text.splitlines())) <= 80
    json.loads(dumps(comparison_to_dict(found)), parse_constant=pytest.fail)
    assert found.better is None or found.better.id != "b"
    assert ("losses below 0" in text) == any(v < 0 for r in rows for v in r.values() if math.isfinite(v))


def test_fewer_than_two_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="needs two runs, got 1"):
        compare([made("a")])


def test_files_of_one_name_are_called_by_their_folders(tmp_path: Path) -> None:
    for name in ("lora-r8", "lora-r16"):
        (tmp_path / name / "checkpoint-160").mkdir(parents=True)
        shutil.copy(RECORDED / "lora-lr1e-2.json", tmp_path / name / "checkpoint-160" / "trainer_state.json")
    reading = read_tree(sorted(tmp_path.glob("*/*/*.json")))
    found = compare(reading.runs)
    assert [e.report.id for e in found.entries] == ["lora-r16", "lora-r8"]
    assert [c.values for c in found.changed if c.setting == "lora_r"] == [(16, 8)]


@pytest.mark.parametrize(
    ("sd", "other", "is_level"),
    [
        (0.001, 1.009, True),
        (0.001, 1.02, False),
        (0.02, 1.05, True),
        (0.02, 1.07, False),
        (None, 1.015, True),
        (None, 1.03, False),
    ],
)
def test_a_difference_needs_a_share_and_a_multiple_of_the_noise(sd: float | None, other: float, is_level: bool) -> None:
    found = difference("best", "eval/loss", [Point(1.0, 10, sd), None, Point(other, 10, sd), Point(math.nan)])
    assert found.lowest == 0
    assert found.level == ((0, 2) if is_level else (0,))


# Sweeps


def trials(*bests: float, wrecked: Sequence[int] = (), first: float = 3.0) -> list[Trial]:
    return [Trial(10.0 ** (i - 6), first, best, best, i in wrecked) for i, best in enumerate(bests)]


@pytest.mark.parametrize(
    ("given", "best", "band", "following"),
    [
        # the largest drop is 2, so what is within 0.2 of 1 serves
        (trials(2.9, 2.0, 1.0, 1.15, 2.0), 1e-4, (1e-4, 1e-3), 3.2e-4),
        (trials(2.9, 1.0, 2.0), 1e-5, (1e-5, 1e-5), 1e-5),
        (trials(2.9, 2.0, 1.0), 1e-4, (1e-4, 1e-4), 3e-4),
        (trials(1.0, 2.0, 2.5), 1e-6, (1e-6, 1e-6), 3.3e-7),
        # as low as the best, but wrecked later, or beyond a rate that does not serve
        (trials(2.9, 1.0, 0.9, wrecked=[2]), 1e-5, (1e-5, 1e-5), 1e-5),
        (trials(1.05, 2.0, 1.0, 1.1), 1e-4, (1e-4, 1e-3), 3.2e-4),
        (trials(math.nan, math.nan, math.nan), None, None, 3.3e-7),
        (trials(3.0, 2.99, 2.995), 1e-5, None, 3e-4),
        (trials(3.0, 2.99, math.nan), 1e-5, None, 3.2e-5),
    ],
)
def test_sweeps(given: list[Trial], best: float | None, band: tuple[float, float] | None, following: float) -> None:
    found = sweep_of(given[::-1], "eval/loss", {"method": "lora", "lora_r": 16})
    assert found is not None
    assert found.rates == tuple(t.rate for t in given)
    assert (found.best_rate, found.band, found.next.rate) == (best, band, following)
    assert str(found.next.output_dir).startswith("runs/lora-r16-lr")


def test_rates_that_are_close_are_not_split_further_and_repeated_ones_are_one() -> None:
    near = [Trial(rate, 3.0, best, best) for rate, best in ((1e-4, 2.0), (1.5e-4, 1.05), (2e-4, 1.0), (3e-4, 1.5))]
    found = sweep_of(near, "eval/loss", {})
    assert found is not None
    assert found.next.rate == 2e-4
    again = sweep_of([*near, Trial(2e-4, 3.0, 1.2, 1.2)], "eval/loss", {})
    assert again is not None
    assert (again.rates, again.bests[2]) == (found.rates, 1.1)
    assert sweep_of(near[:2] * 3, "eval/loss", {}) is None


def test_only_runs_that_differ_in_nothing_but_the_rate_are_a_sweep() -> None:
    rates = (1e-5, 1e-4, 1e-3)
    runs = [
        made(f"{i}", floor, learning_rate=r, seed=i) for i, (r, floor) in enumerate(zip(rates, (2.5, 1.0, 2.0), strict=True))
    ]
    assert compare(runs).sweep is not None
    assert compare(runs[:2]).sweep is None
    assert compare([*runs, made("more", lora_r=64, learning_rate=1e-2)]).sweep is None
    found = compare(runs[::-1])
    assert [e.report.id for e in found.entries] == ["0", "1", "2"]
    assert found.changed[0].values == rates


def test_a_sweep_without_evaluations_goes_by_the_training_loss() -> None:
    runs = [made(f"{r}", f, learning_rate=r, evals=0) for r, f in ((1e-5, 2.5), (1e-4, 1.0), (1e-3, 2.0))]
    found = compare(runs)
    assert found.sweep is not None
    assert (found.sweep.metric, found.sweep.best_rate, found.better) == ("train/loss", 1e-4, None)


def test_the_recorded_sweep() -> None:
    found = compare(recorded(*SWEEP))
    assert found.better is not None
    assert (found.better.id, found.better.step) == ("lora-lr1e-2", 160)
    assert found.sweep is not None
    assert (found.sweep.best_rate, found.sweep.band, found.warning) == (1e-2, (1e-2, 1e-2), None)
    assert math.isnan(found.sweep.finals[-1])
    text = shown(found)
    assert max(map(len, text.splitlines())) <= 80
    snapshot.check("compare_sweep.txt", text)


def test_bands_of_recorded_sweeps_are_the_rates_that_should_be_held() -> None:
    from sweeps import FOLDER, load_sweeps, truth

    assert FOLDER.is_dir()
    right = total = 0
    for sweep in load_sweeps():
        found = compare(sweep.runs).sweep
        assert found is not None
        assert found.band is not None
        held = [rate for rate, word in zip(sweep.rates, truth(sweep), strict=True) if word == "hold"]
        assert found.best_rate in held
        # the next rate is never one that a higher or lower one clearly beats
        assert held[0] / 2 <= found.next.rate <= held[-1] * 2
        right += sum((found.band[0] <= rate <= found.band[1]) == (rate in held) for rate in sweep.rates)
        total += len(sweep.rates)
    assert right >= 0.95 * total


# The command


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(argv)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("lora-lr1e-3", "lora-lr3e-3", "lora-lr3e-1"):
        shutil.copy(RECORDED / f"{name}.json", tmp_path / "runs")
    return tmp_path / "runs"


def test_the_json_document(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "compare", "runs", "--format", "json")
    assert (code, err) == (0, "")
    told = json.loads(out, parse_constant=pytest.fail)
    assert list(told) == [
        "schema", "runs", "changed", "differences", "better", "leaders", "warning", "cautions", "sweep", "next",
        "skipped",
    ]  # fmt: skip
    assert [r["id"] for r in told["runs"]] == ["lora-lr1e-3", "lora-lr3e-3", "lora-lr3e-1"]
    assert [c["setting"] for c in told["changed"]] == ["learning_rate"]
    assert set(told["better"]) == {"id", "step", "value", "metric", "over", "margin", "noise"}
    assert set(told["sweep"]) == {"metric", "rates", "bests", "finals", "best_rate", "band", "next"}
    assert told["sweep"]["finals"][-1] == "NaN"


def test_a_run_that_cannot_be_read_is_told_and_the_others_are_compared(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "compare", "runs", "nothing.json")
    assert (code, err) == (0, "diagnose: not read: nothing.json: no such file or folder\n")
    assert out.startswith("lora-lr3e-3 is better than the other 2")
    told = json.loads(run(capsys, "compare", "runs", "nothing.json", "--format", "json")[1])
    assert [s["path"] for s in told["skipped"]] == ["nothing.json"]


@pytest.mark.parametrize("argv", [["nothing.json"], ["runs/lora-lr1e-3.json"], ["runs/lora-lr1e-3.json"] * 2, []])
def test_fewer_than_two_runs_end_the_command(logs: Path, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    code, out, err = run(capsys, "compare", *argv)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("diagnose: ")
    assert ("a comparison needs two runs" in err) == bool(argv)


def test_a_file_is_written(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "compare", "runs", "-o", "told.txt") == (0, "", "")
    assert Path("told.txt").read_text(encoding="utf-8").startswith("lora-lr3e-3 is better")
    assert run(capsys, "compare", "runs", "-o", "no/such/told.txt")[0] == 2


def test_a_folder_of_the_commands_name(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.rename(logs.parent / "compare")
    code, out, _ = run(capsys, "./compare", "--fail-on", "never")
    assert code == 0
    assert "3 runs: " in out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["compare", "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: diagnose compare PATH PATH...")
    assert max(map(len, out.splitlines())) <= 80


def test_the_sweep_in_ascii() -> None:
    text = shown(compare(recorded(*SWEEP)), Ascii())
    assert max(map(len, text.splitlines())) <= 80
    snapshot.check("compare_sweep_ascii.txt", text)


def test_colour_is_left_out_of_a_pipe(logs: Path) -> None:
    given = {"PYTHONPATH": str(Path(cli.__file__).parents[1]), "COLUMNS": "60"}
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR")}
    command = [sys.executable, "-m", "diagnose", "compare", "runs"]
    done = subprocess.run(command, capture_output=True, text=True, env=kept | given, check=True)
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60


def test_two_rates_give_the_next_one():
    runs = recorded("lora-lr3e-4", "lora-lr1e-3")
    found = compare(runs)
    assert found.sweep is None
    assert found.next is not None
    assert found.next.rate == pytest.approx(3e-3, rel=0.01)
    assert comparison_to_dict(found)["next"]["rate"] == found.next.rate
    assert "The learning rate to try next\n    next    3e-3" in shown(found)
    held = compare([dataclasses.replace(run, settings={**run.settings, "method": "lora"}) for run in runs])
    assert held.next is None  # both are at or above the usual range of the method
