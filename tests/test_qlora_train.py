"""Whole trainings with `diagnose train` on the CPU: real models, real Trainer, real files."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

for name in ("torch", "transformers", "trl", "peft", "datasets", "bitsandbytes"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = [
    pytest.mark.train,
    # the libraries' own remarks about their future, which the command silences too
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]

import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, TrainerCallback, TrainerControl, TrainerState
from trl import SFTTrainer

from diagnose import CurveDoctor, examine, read
from diagnose.callbacks.qlora import stages
from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.hardware import choose_hardware
from diagnose.callbacks.qlora.out_of_memory import BatchSettings
from diagnose.callbacks.qlora.preflight import Preflight
from diagnose.callbacks.qlora.train import Result, train
from diagnose.cli import main


def settings(base: Path, folder: Path, **changed: Any) -> TrainConfig:
    """A short LoRA run that learns."""
    usual: dict[str, Any] = {
        "model": str(base / "base"),
        "data": str(base / "examples.jsonl"),
        "method": "lora",
        "output_dir": str(folder),
        "learning_rate": 5e-3,
        "max_steps": 24,
        "eval_steps": 6,
        "logging_steps": 2,
        "per_device_train_batch_size": 8,
        "total_train_batch_size": 8,
        "preflight": 0,
        "n_samples": 0,
        "device": "cpu",
        "report_to": "none",
    }
    return TrainConfig(**usual | changed)


def rows(folder: Path) -> list[dict[str, float]]:
    """What the Trainer logged, without its times."""
    kept = ("step", "loss", "eval_loss", "learning_rate", "grad_norm")
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [{k: row[k] for k in kept if k in row} for row in history if "loss" in row or "eval_loss" in row]


@pytest.fixture(scope="module")
def lora(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path, str]:
    """A run by the command, with all that it prints."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("lora") / "run"
    argv = ["--model", str(tiny_base / "base"), "--data", str(tiny_base / "examples.jsonl"), "--method", "lora", "--lr", "1e-2"]
    argv += ["--max-steps", "72", "--eval-steps", "9", "--output-dir", str(folder), "--merge"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(["train", *argv])
    return code, folder, out.getvalue()


def test_a_run_by_the_command(lora: tuple[int, Path, str]) -> None:
    code, folder, out = lora
    assert code == 0, out
    assert "recognised as prompt-completion" in out
    assert "batch 4 x accumulation 4" in out
    assert re.search(r"preflight passed: loss (falls|flat) from \d", out), out
    assert re.search(r"step  9/72  train \d\S+ +eval \d\S+", out)
    assert out.count("said: ") == 8
    assert "HEALTHY" in out
    assert out.rstrip().endswith(f"merged model: {folder / 'merged'}")
    # the first steps one by one, the rest by the interval
    steps = [row["step"] for row in rows(folder) if "loss" in row]
    assert steps == [*range(1, 19), *range(21, 73, 3)]


def test_what_is_kept(lora: tuple[int, Path, str], tiny_base: Path) -> None:
    _, folder, _ = lora
    state = json.loads((folder / "trainer_state.json").read_text())
    best = load_file(folder / "best" / "adapter_model.safetensors")
    at_best = load_file(Path(state["best_model_checkpoint"]) / "adapter_model.safetensors")
    assert best.keys() == at_best.keys()
    assert all(torch.equal(best[name], at_best[name]) for name in best)
    assert len([name for name in best if "lora_A" in name]) == 14  # seven linear layers in each of two blocks
    assert len(list(folder.glob("checkpoint-*"))) <= 3

    ids = torch.tensor([[5, 60, 70, 80]])
    adapted = AutoPeftModelForCausalLM.from_pretrained(folder / "best", dtype=torch.bfloat16)
    merged = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.bfloat16)
    plain = AutoModelForCausalLM.from_pretrained(tiny_base / "base", dtype=torch.bfloat16)
    with torch.no_grad():
        a, m, p = (model(input_ids=ids).logits.float() for model in (adapted, merged, plain))
    assert (a - m).abs().max() < 0.25 * (a - p).abs().max()  # bf16 rounds the merged weights
    assert all(tensor.dtype == torch.bfloat16 for tensor in merged.state_dict().values())


def test_the_folder_says_what_was_said_live(lora: tuple[int, Path, str]) -> None:
    _, folder, _ = lora
    (run,) = read(folder)
    later, live = examine(run), json.loads((folder / "curve_doctor.json").read_text())
    (told,) = live["runs"]
    assert later.verdict.value == told["verdict"] == "HEALTHY"
    assert [(f.code, f.first_step) for f in later.findings] == [(f["code"], f["first_step"]) for f in told["findings"]]
    assert later.settings["method"] == "lora"
    assert later.settings["total_train_batch_size"] == 16


def test_the_card_holds_settings_curve_report_and_samples(lora: tuple[int, Path, str]) -> None:
    _, folder, _ = lora
    card = (folder / "best" / "README.md").read_text()
    best = min((row for row in rows(folder) if "eval_loss" in row), key=lambda row: row["eval_loss"])
    assert card.startswith("---\nlibrary_name: peft\n")
    assert f"step {best['step']}, where eval/loss was lowest ({best['eval_loss']:.4g})" in card
    assert "| learning_rate | 0.01 |" in card
    assert len(re.findall(r"^\| \d+ \| \d+\.\d+ \| \d", card, re.MULTILINE)) == 8
    assert "### HEALTHY" in card
    assert "| step | asked | said | expected |" in card


def test_a_second_run_into_the_folder_is_refused(
    lora: tuple[int, Path, str], tiny_base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder, _ = lora
    before = sorted(path.name for path in folder.iterdir())
    data = str(tiny_base / "examples.jsonl")
    assert main(["train", "--model", str(tiny_base / "base"), "--data", data, "--output-dir", str(folder)]) == 2
    assert "holds a run that reached step 72: continue it with --resume" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_qlora_trains_a_4_bit_base(tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bitsandbytes

    seen: list[Any] = []
    make = stages.make_trainer

    def watched(*args: Any) -> Any:
        seen.append(make(*args).model)
        return make(*args)

    monkeypatch.setattr("diagnose.callbacks.qlora.train.make_trainer", watched)
    result = train(settings(tiny_base, tmp_path / "run", method="qlora", lora_r=8, lora_dropout=0.1))
    assert result.is_good
    layers = [m for m in seen[0].modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]
    assert len(layers) == 14
    assert all(layer.weight.quant_state.quant_type == "nf4" and layer.weight.quant_state.nested for layer in layers)
    # the kernel without a backward pass, see `keep_trainable`
    assert not any(getattr(layer, "support_avx512bf16_for_cpu", False) for layer in layers)
    adapter = json.loads((tmp_path / "run" / "best" / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"], adapter["lora_dropout"]) == (8, 16, 0.1)
    losses = [row["eval_loss"] for row in rows(tmp_path / "run") if "eval_loss" in row]
    assert losses[-1] < losses[0]
    (run,) = read(tmp_path / "run")
    assert (run.settings["method"], run.settings["lora_r"]) == ("qlora", 8)


class Signal(TrainerCallback):
    """Sends this process a signal at a step."""

    def __init__(self, step: int, number: int) -> None:
        self.step, self.number = step, number

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(
    number: int, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    changed = {"method": "full", "learning_rate": 1e-3, "preflight": 12, "max_steps": 40, "logging_steps": 4}
    train(settings(tiny_base, whole, **changed))

    make = stages.make_trainer
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:

        def with_signal(*args: Any) -> Any:
            trainer = make(*args)
            trainer.add_callback(Signal(15, number))
            return trainer

        patch.setattr("diagnose.callbacks.qlora.train.make_trainer", with_signal)
        result = train(settings(tiny_base, cut, **changed))
    assert result.signal == number
    assert (cut / "checkpoint-15").is_dir()
    assert not (cut / "best").exists()
    assert f"Go on with: diagnose train --resume {cut}" in capsys.readouterr().out
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers

    assert main(["train", "--resume", str(cut)]) == 0
    out = capsys.readouterr().out
    assert f"goes on from {cut / 'checkpoint-15'}" in out
    assert "preflight" not in out.replace("--preflight", "")
    expected, found = rows(whole), rows(cut)
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    # the log after the cut, at step 16, is the mean of one step instead of four
    for row, other in zip(expected, found, strict=True):
        if row["step"] != 16:
            assert other == pytest.approx(row, rel=1e-4), row["step"]
    assert examine(read(cut)[0]).verdict == examine(read(whole)[0]).verdict


def test_a_run_that_was_cut_off_before_it_kept_its_best_can_be_completed(
    tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    folder = tmp_path / "run"
    train(settings(tiny_base, folder))
    before = rows(folder)
    assert main(["train", "--resume", str(folder)]) == 2
    assert "has made all its steps" in capsys.readouterr().err
    shutil.rmtree(folder / "best")
    assert main(["train", "--resume", str(folder)]) == 0
    assert (folder / "best" / "adapter_model.safetensors").is_file()
    assert rows(folder) == before


def test_a_signal_at_the_last_step_is_no_interruption(tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = stages.make_trainer

    def with_signal(*args: Any) -> Any:
        trainer = make(*args)
        trainer.add_callback(Signal(6, signal.SIGTERM))
        return trainer

    monkeypatch.setattr("diagnose.callbacks.qlora.train.make_trainer", with_signal)
    result = train(settings(tiny_base, tmp_path / "run", max_steps=6, eval_steps=3))
    assert result.signal is None
    assert result.best == tmp_path / "run" / "best"


def test_out_of_memory_halves_the_batch_and_keeps_the_effective_one(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = SFTTrainer.training_step

    def small(self: Any, model: Any, inputs: Any, *args: Any) -> Any:
        if len(inputs["input_ids"]) > 2 and self.state.global_step >= 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self, model, inputs, *args)

    monkeypatch.setattr(SFTTrainer, "training_step", small)
    result = train(settings(tiny_base, tmp_path / "run"))
    assert result.is_good
    told = capsys.readouterr().out
    assert "out of memory: batch 4 x accumulation 2 from here, the same effective batch" in told
    assert "out of memory: batch 2 x accumulation 4 from here" in told
    assert "goes on from" in told  # the steps so far are not made again
    (run,) = read(tmp_path / "run")
    assert run.settings["total_train_batch_size"] == 8
    assert [row["step"] for row in rows(tmp_path / "run") if "loss" in row] == list(range(2, 25, 2))


def test_out_of_memory_to_the_end_is_told_with_the_cure(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(self: Any, *args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(SFTTrainer, "training_step", never)
    argv = ["--model", str(tiny_base / "base"), "--data", str(tiny_base / "examples.jsonl"), "--method", "lora"]
    argv += ["--device", "cpu", "--batch", "2", "--max-steps", "4", "--output-dir", str(tmp_path / "run")]
    assert main(["train", *argv]) == 2
    said = capsys.readouterr()
    assert "batch 1 x accumulation 2 with gradient checkpointing" in said.out
    assert "train with --max-length" in said.err


def test_a_full_disk_is_told_with_the_cure(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import errno

    def full(self: Any, *args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SFTTrainer, "_save_checkpoint", full)
    argv = ["--model", str(tiny_base / "base"), "--data", str(tiny_base / "examples.jsonl"), "--method", "lora"]
    assert main(["train", *argv, "--device", "cpu", "--max-steps", "4", "--output-dir", str(tmp_path / "run")]) == 2
    assert re.search(r"no space left for .*GB free.*--save-total-limit 1", capsys.readouterr().err)


def test_the_steps_are_those_of_the_trainer(tiny_base: Path, tmp_path: Path) -> None:
    config = settings(tiny_base, tmp_path / "run", max_steps=None, num_train_epochs=1.5, total_train_batch_size=24)
    hardware = choose_hardware(config)
    prepared = stages.prepare(config)
    batch, plan, _ = stages.make_plan(config, hardware, prepared)
    assert plan is not None
    assert batch == BatchSettings(8, 3, checkpointing=False)
    trainer = stages.make_trainer(config, hardware, prepared, batch, tmp_path / "run", [])
    seen: list[int] = []

    class Steps(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(state.max_steps)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = True

    trainer.add_callback(Steps())
    trainer.train()
    assert seen == [stages.steps_of(config, len(prepared.data.train), batch, 1)]
    assert all(math.isfinite(p.sum().item()) for p in trainer.model.parameters())
    assert isinstance(trainer.model, PeftModel)


def test_without_a_validation_set_the_last_weights_are_kept(
    tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = (tiny_base / "examples.jsonl").read_text().splitlines()[:8]
    (tmp_path / "few.jsonl").write_text("\n".join(few))
    config = settings(tiny_base, tmp_path / "run", data=str(tmp_path / "few.jsonl"), max_steps=12, n_samples=2)
    result = train(config)
    assert result.is_good
    out = capsys.readouterr().out
    assert "no validation set" in out
    assert re.search(r"^step +6/12  train \S+ +rate", out, re.MULTILINE)
    assert out.count("said: ") == 4  # two answers at each of two checkpoints
    kept = load_file(tmp_path / "run" / "best" / "adapter_model.safetensors")
    last = load_file(tmp_path / "run" / "checkpoint-12" / "adapter_model.safetensors")
    assert all(torch.equal(kept[name], last[name]) for name in last)


def test_flash_attention_trains_without_padding(tiny_base: Path, tmp_path: Path) -> None:
    config = settings(tiny_base, tmp_path / "run")
    prepared = stages.prepare(config)
    hardware = choose_hardware(config)
    flash = replace(hardware, attention="flash_attention_2")
    batch = BatchSettings(4, 4, checkpointing=True)
    args = stages.training_arguments(config, flash, prepared, batch, tmp_path)
    assert args.padding_free
    assert args.max_length is None
    alone = stages.training_arguments(config, flash, prepared, BatchSettings(1, 16, checkpointing=True), tmp_path)
    padded = stages.training_arguments(config, hardware, prepared, batch, tmp_path)
    assert not alone.padding_free
    assert not padded.padding_free
    assert padded.max_length == prepared.max_length
    assert (padded.gradient_checkpointing, padded.gradient_accumulation_steps, padded.warmup_steps) == (True, 4, 0.05)
    assert (padded.lr_scheduler_type, padded.max_grad_norm, padded.weight_decay, padded.seed) == ("cosine", 1.0, 0.01, 42)
    assert (padded.eval_steps, padded.save_steps, padded.save_total_limit, padded.load_best_model_at_end) == (6, 6, 3, True)


def test_the_preflight_tells_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 11_000_000_000)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 23_500_000_000)
    preflight = Preflight(9, CurveDoctor(), gpu_bytes=24_000_000_000, planned=10_500_000_000)
    state = TrainerState(max_steps=36, is_world_process_zero=False)
    args = SimpleNamespace(eval_strategy="no")
    control = TrainerControl()
    preflight.on_train_begin(args, state, control)
    for step in range(1, 10):
        state.global_step = step
        preflight.on_step_end(args, state, control)
        assert control.should_log
        state.log_history.append({"loss": 3 - 0.1 * step, "learning_rate": 1e-4, "step": step})
        preflight.on_log(args, state, control, logs=state.log_history[-1])
    assert preflight.result is not None
    assert preflight.result.is_good
    assert not control.should_training_stop
    assert preflight.result.lines[0].startswith("loss falls from 2.8")
    assert preflight.result.lines[1] == "memory 11.0 of 24.0 GB, planned 10.5"
    assert "nearly full" in preflight.result.lines[2]
