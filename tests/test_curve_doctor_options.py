"""What a user can choose, in real trainings: what stops, when, who is told, samples, rollback, writers and notebooks."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import types
from pathlib import Path
from typing import Any

import pytest

for name in ("transformers", "trl", "peft", "datasets"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = pytest.mark.train

import torch
from datasets import Dataset
from peft import LoraConfig
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny import Classifier, llama, sentences, tokenizer, trainer
from trl import SFTConfig, SFTTrainer
from trl.trainer.callbacks import RichProgressCallback

from diagnose import CurveDoctor, examine
from diagnose.callbacks import writers
from diagnose.callbacks.sample_prompts import MOST_PROMPTS, samples
from diagnose.model import Finding, Severity
from diagnose.readers import read

EVERY_10: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 10, "save_strategy": "no", "logging_steps": 5}
MEMORIZING: dict[str, Any] = {"random_labels": True, "n": 32, "max_steps": 200, **EVERY_10}


def train(folder: Path, doctor: CurveDoctor, **options: Any) -> tuple[Any, str]:
    made = trainer(folder, [doctor], **options)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        made.train()
    assert not doctor.failed, out.getvalue()
    return made, out.getvalue()


def stopped_at(folder: Path, doctor: CurveDoctor, **options: Any) -> int:
    made, _ = train(folder, doctor, **MEMORIZING | options)
    return int(made.state.global_step)


def test_patience_and_grace_put_the_stop_off(tmp_path: Path) -> None:
    usual = stopped_at(tmp_path / "a", CurveDoctor())
    assert usual < 100
    assert stopped_at(tmp_path / "b", CurveDoctor(patience=6)) > usual
    assert stopped_at(tmp_path / "c", CurveDoctor(grace=120)) == 125, "at the first log after the grace"
    assert stopped_at(tmp_path / "d", CurveDoctor(grace=0.5)) == 105
    assert stopped_at(tmp_path / "e", CurveDoctor(grace=500)) == 200


@pytest.mark.parametrize("strategy", ["epoch", "steps", "best"])
def test_the_best_checkpoint_is_loaded_after_a_stop_however_it_is_saved(tmp_path: Path, strategy: str) -> None:
    options: dict[str, Any] = {**MEMORIZING, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    options |= {"save_strategy": strategy, "save_steps": 10, "save_total_limit": 2}
    if strategy == "epoch":
        options["eval_strategy"] = "epoch"
    doctor = CurveDoctor()
    made, _ = train(tmp_path, doctor, **options)
    assert doctor.examination is not None and doctor.examination.stop.stop
    best = doctor.examination.curves.best
    assert best is not None
    assert made.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best.step}")
    assert Path(made.state.best_model_checkpoint).is_dir()
    assert made.evaluate()["eval_loss"] == pytest.approx(best.value)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_stop_comes_at_an_optimizer_step(tmp_path: Path, accumulation: int) -> None:
    options = {"gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 8 // accumulation}
    assert stopped_at(tmp_path, CurveDoctor(), **options) % 5 == 0


def test_only_the_rules_that_are_named_stop(tmp_path: Path) -> None:
    assert stopped_at(tmp_path / "a", CurveDoctor(stop=("nan-loss", "CD202"))) == 200
    assert stopped_at(tmp_path / "b", CurveDoctor(stop="memorization")) < 200
    assert stopped_at(tmp_path / "c", CurveDoctor(stop=False)) == 200
    assert stopped_at(tmp_path / "d", CurveDoctor(stop=())) == 200


def test_on_finding_hears_each_piece_of_news(tmp_path: Path) -> None:
    heard: list[Finding] = []
    _, out = train(tmp_path, CurveDoctor(on_finding=heard.append), model=Classifier(nan_from=6))
    assert [(f.name, f.severity) for f in heard if f.name == "nan-loss"] == [
        ("nan-loss", Severity.WARNING),
        ("nan-loss", Severity.ERROR),
    ]
    assert all(f.message in out for f in heard)


def test_a_listener_that_fails_stops_nothing_and_is_told_once(tmp_path: Path) -> None:
    def fails(finding: Finding) -> None:
        raise RuntimeError("the pager is off")

    doctor = CurveDoctor(on_finding=fails)
    made = trainer(tmp_path, [doctor], model=Classifier(nan_from=6))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        made.train()
    assert made.state.global_step == 7
    assert out.getvalue().count("the pager is off") == 1


def test_findings_are_logged_at_info(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="diagnose"):
        train(tmp_path, CurveDoctor(), model=Classifier(nan_from=6))
    assert [r.message.split(" (")[0] for r in caplog.records if "nan-loss" in r.message] == ["CD101 nan-loss"] * 2


def test_rollback_puts_the_best_weights_back(tmp_path: Path) -> None:
    doctor = CurveDoctor(rollback=True)
    made, out = train(tmp_path, doctor, **MEMORIZING)
    assert doctor.examination is not None
    best = doctor.examination.curves.best
    assert best is not None and best.step < made.state.global_step
    assert f"the weights of step {best.step}, the best evaluation, are back in the model" in out
    assert made.evaluate()["eval_loss"] == pytest.approx(best.value)


def test_rollback_leaves_weights_that_are_the_best(tmp_path: Path) -> None:
    made, out = train(tmp_path, CurveDoctor(rollback=True), n=512, max_steps=40, **EVERY_10)
    assert "are back in the model" not in out
    assert made.state.global_step == 40


def sft(folder: Path, doctor: CurveDoctor, *, callbacks: Any = (), **options: Any) -> str:
    words = tokenizer()
    args = SFTConfig(
        output_dir=str(folder), max_steps=8, logging_steps=2, per_device_train_batch_size=4, max_length=32, bf16=False,
        use_cpu=True, save_strategy="no", dataloader_pin_memory=False, eval_strategy="steps", eval_steps=4,
        **{"report_to": "none", "activation_checkpointing": False, "disable_tqdm": True, **options},
    )  # fmt: skip
    data = Dataset.from_dict({"text": sentences(40)})
    made = SFTTrainer(
        model=llama(len(words)),
        args=args,
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=words,
        peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=list(callbacks),
    )
    made.add_callback(doctor)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        made.train()
    assert not doctor.failed, out.getvalue()
    assert made.state.global_step == 8
    return out.getvalue()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_sample_prompts_are_answered_at_each_evaluation(tmp_path: Path, checkpointing: bool) -> None:
    doctor = CurveDoctor(sample_prompts=["the cat", "a dog"], report=False)
    out = sft(tmp_path, doctor, activation_checkpointing=checkpointing)
    said = [line for line in out.splitlines() if "'the cat' -> " in line or "'a dog' -> " in line]
    assert [line.split(":")[1].strip() for line in said] == ["step 4", "step 4", "step 8", "step 8"]


def test_samples_draw_no_random_numbers_and_change_no_weight(tmp_path: Path) -> None:
    words = tokenizer()
    model = llama(len(words)).train()
    torch.manual_seed(0)
    expected = torch.rand(1)
    before = [p.clone() for p in model.parameters()]
    torch.manual_seed(0)
    found = samples(model, words, ["the cat"] * 9)
    assert len(found) == MOST_PROMPTS
    assert torch.equal(torch.rand(1), expected)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_chat_template_gets_the_prompt_as_the_user_s_turn() -> None:
    words = tokenizer()
    words.chat_template = "{% for m in messages %}{{ m['content'] }} learns{% endfor %}"
    plain = samples(llama(len(words)), words, ["the cat"])
    words.chat_template = None
    assert plain[0][1] == samples(llama(len(words)), words, ["the cat learns"])[0][1]


@pytest.mark.parametrize("processing_class", [None, types.SimpleNamespace(tokenizer=None)])
def test_without_a_tokenizer_there_are_no_samples(processing_class: Any) -> None:
    assert samples(llama(320), processing_class, ["the cat"]) == []


def test_findings_go_into_the_event_file_that_the_trainer_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    made, _ = train(tmp_path / "out", CurveDoctor(), model=Classifier(nan_from=6), report_to="tensorboard")
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("curve_doctor/nan-loss")] == [(6, 2.0), (7, 3.0)]
    assert "curve_doctor/findings/text_summary" in events.Tags()["tensors"]
    (run,) = read(tmp_path / "tb")
    assert not [name for name in run.series if "curve_doctor" in name], "our own words are no metrics of the run"
    assert examine(run).last_step == made.state.global_step


@pytest.mark.parametrize(("callback", "module"), [("WandbCallback", "wandb"), ("TrackioCallback", "trackio")])
def test_runs_of_other_loggers_get_a_number_with_our_step(monkeypatch: pytest.MonkeyPatch, callback: str, module: str) -> None:
    logged: list[dict[str, Any]] = []
    run = types.SimpleNamespace(log=logged.append)
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(run=run, log=logged.append))
    finding = Finding("CD101", "nan-loss", Severity.ERROR, "train/loss", 6, 6, "said so", ())
    (write,) = writers.writers([type(callback, (), {})()])
    write(finding, 7)
    assert logged == [{"curve_doctor/nan-loss": 3, "train/global_step": 7}]


def test_a_writer_that_fails_costs_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(finding: Finding, step: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("diagnose.callbacks.curve_doctor.writers", lambda callbacks: [broken])
    doctor = CurveDoctor()
    made = trainer(tmp_path, [doctor], model=Classifier(nan_from=6))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        made.train()
    assert made.state.global_step == 7
    assert out.getvalue().count("no space left") == 1


def test_beside_a_rich_progress_display(tmp_path: Path) -> None:
    out = sft(tmp_path, CurveDoctor(sample_prompts=["the cat"]), callbacks=[RichProgressCallback()], disable_tqdm=False)
    assert out.count("'the cat' -> ") == 2


def test_in_a_notebook_the_report_is_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    shell = type("ZMQInteractiveShell", (), {})()
    display = types.SimpleNamespace(display=shown.append, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell, display=display))
    train(tmp_path, CurveDoctor(), model=Classifier(nan_from=6))
    (page,) = shown
    assert page.startswith("<pre")
    assert "SICK" in page
    assert "<span style=" in page
