"""What happens after a stop: a new try with a third of the rate, the best checkpoint, or advice alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

for name in ("torch", "transformers", "trl", "peft", "datasets"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = [
    pytest.mark.train,
    # the libraries' own remarks about their future, which the command silences too
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]

import torch
from safetensors.torch import load_file

from diagnose import examine
from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.preflight import course_of
from diagnose.callbacks.qlora.train import train
from diagnose.callbacks.qlora.treatment import cause_of, treat
from diagnose.cli import main
from diagnose.examination import Examination
from diagnose.model import Best, Kind, Verdict
from diagnose.readers import read, read_tree
from diagnose.rules.flat_loss import FlatLoss

RECORDED = Path(__file__).parent.parent / "fixtures" / "recorded"


def report_of(name: str, **settings: Any) -> Any:
    (run,) = read(RECORDED / f"{name}.json")
    return examine(replace(run, settings={**run.settings, **settings}))


def test_a_divergence_is_tried_again_with_the_prescribed_rate_from_the_best_checkpoint(tmp_path: Path) -> None:
    report = report_of("lora-lr1e-1", learning_rate=0.1, method="lora")
    folder = tmp_path / "lora-r16-lr0.1"
    best = folder / f"checkpoint-{report.best.step}"
    best.mkdir(parents=True)
    config = TrainConfig(method="lora", learning_rate=0.1, output_dir=str(folder))
    cause = cause_of(report, failed_preflight=False)
    assert cause is not None
    assert cause.name == "loss-divergence"

    made = treat(config, folder, report, cause, first_loss=report.best.value * 2)
    assert made is not None
    (change,) = made.changes
    assert made.config.learning_rate == change.after < 0.1
    assert made.config.start_from == str(best)
    assert made.config.earlier == (str(folder),)
    assert made.config.retries == config.retries - 1
    assert Path(made.config.output_dir or "").parent == tmp_path
    unchanged = replace(made.config, learning_rate=0.1, start_from=None, earlier=(), retries=2, output_dir=str(folder))
    assert unchanged == config  # nothing else

    # no evaluation was better than the start: that start again
    again = treat(config, folder, report, cause, first_loss=report.best.value)
    assert again is not None
    assert again.config.start_from is None
    assert treat(replace(config, retries=0), folder, report, cause, first_loss=None) is None


def test_the_best_checkpoint_must_still_be_there(tmp_path: Path) -> None:
    report = replace(report_of("lora-lr1e-1", learning_rate=0.1, method="lora"), best=Best(8, 1.0, "eval/loss"))
    config = TrainConfig(method="lora", learning_rate=0.1, start_from="before")
    made = treat(config, tmp_path, report, cause_of(report, failed_preflight=False), first_loss=9.0)
    assert made is not None
    assert made.config.start_from == "before"


@pytest.mark.parametrize("name", ["memorization", "masked-labels", "detached-optimizer", "lora-lr1e-3"])
def test_what_no_rate_would_mend_is_not_tried_again(name: str, tmp_path: Path) -> None:
    report = report_of(name)
    cause = cause_of(report, failed_preflight=False)
    assert treat(TrainConfig(), tmp_path, report, cause, first_loss=None) is None


def test_a_flat_run_is_tried_again_with_three_times_the_rate(tmp_path: Path) -> None:
    exam = Examination(settings={"learning_rate": 3e-5, "method": "qlora", "lora_r": 16})
    for row in FlatLoss.firing[1].rows():
        exam.feed(row)
    report = exam.report()
    cause = next(finding for finding in report.findings if finding.name == "flat-loss")
    made = treat(TrainConfig(learning_rate=3e-5), tmp_path, report, cause, first_loss=None)
    assert made is not None
    assert made.config.rate == pytest.approx(9e-5)
    assert made.config.start_from is None


def noisy(values: list[float]) -> list[float]:
    draw = random.Random(0)
    return [value + draw.gauss(0, 0.1) for value in values]


def test_the_course_of_a_preflight() -> None:
    assert course_of(noisy([3 - 0.02 * i for i in range(50)]))[0] == "falls"
    assert course_of(noisy([3.0] * 50))[0] == "flat"
    assert course_of(noisy([1.0] * 10 + [4.0] * 40))[0] == "rises"  # one jump, and no noise that hides it
    assert course_of([float("nan")] * 50)[0] == "rises"


def test_no_healthy_curve_fails_a_preflight() -> None:
    courses = []
    for run in read_tree([RECORDED, RECORDED.parent / "public"]).runs:
        report, losses = examine(run), run.series.get("train/loss")
        is_healthy = report.verdict is Verdict.HEALTHY and report.kind is Kind.SUPERVISED
        if is_healthy and losses is not None and len(losses) >= 18:
            courses.append(course_of(losses.value[:50].tolist())[0])
    assert len(courses) >= 15
    assert "rises" not in courses


def test_the_demo_stops_treats_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--demo"]) == 0
    out = capsys.readouterr().out
    first, second = (tmp_path / "runs" / "demo" / name for name in ("lora-r16-lr0.1-ep8", "lora-r16-lr0.011-ep8"))
    assert "preflight FAILED: loss rises" in out
    assert "changed: learning_rate 0.1 to 0.011 (divided by 9); nothing else" in out
    assert "it counts before loss-spike, whose cure the report shows" in out
    assert "lora-r16-lr0.011-ep8 is better" in out
    assert out.rstrip().endswith("best adapter: runs/demo/lora-r16-lr0.011-ep8/best")
    assert not (first / "best").exists()
    history = json.loads((second / "trainer_state.json").read_text())["log_history"]
    losses = [row["eval_loss"] for row in history if "eval_loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    assert json.loads((second / "curve_doctor.json").read_text())["runs"][0]["verdict"] == "HEALTHY"
    # the answers of the first try are noise, those of the second one are right
    samples = [[json.loads(line) for line in (f / "samples.jsonl").read_text().splitlines()] for f in (first, second)]
    assert samples[0][-1]["answer"].strip() != samples[0][-1]["expected"].strip()
    assert samples[1][-1]["answer"].strip() == samples[1][-1]["expected"].strip()


def test_a_failed_preflight_without_a_retry_ends_with_the_prescription(
    tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--model", str(tiny_base / "base"), "--data", str(tiny_base / "examples.jsonl"), "--method", "lora", "--lr", "0.3"]
    argv += ["--max-steps", "120", "--device", "cpu", "--per-device-train-batch-size", "16", "--retries", "0"]
    assert main(["train", *argv, "--output-dir", str(tmp_path / "run")]) == 1
    out = capsys.readouterr().out
    assert "preflight FAILED: loss rises" in out
    assert "no try is left. Lower the learning rate from 0.3 to" in out
    assert "nothing was kept" in out
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert state["global_step"] == 30


def test_memorization_ends_with_the_best_checkpoint(
    tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(1)
    words = ("red", "blue", "green", "old", "new", "cold")
    for name, n in (("train", 48), ("validation", 24)):
        pairs = [{"prompt": f"{name} {i}:", "completion": " " + " ".join(draw.choices(words, k=4))} for i in range(n)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    config = TrainConfig(
        model=str(tiny_base / "base"),
        data=str(tmp_path / "train.jsonl"),
        validation=str(tmp_path / "validation.jsonl"),
        method="full",
        learning_rate=5e-3,
        num_train_epochs=40,
        total_train_batch_size=16,
        per_device_train_batch_size=16,
        device="cpu",
        n_samples=0,
        report_to="none",
        output_dir=str(tmp_path / "run"),
    )
    result = train(config)
    (only,) = result.tries
    assert only.report.stop.because is not None
    assert only.report.stop.because.name == "memorization"
    assert result.is_good
    assert result.best == tmp_path / "run" / "best"
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert state["best_global_step"] < state["global_step"] < state["max_steps"]
    kept = load_file(result.best / "model.safetensors")
    best = load_file(tmp_path / "run" / f"checkpoint-{state['best_global_step']}" / "model.safetensors")
    assert all(torch.equal(kept[name], best[name]) for name in best)
    assert "the best checkpoint is the result" in capsys.readouterr().out
