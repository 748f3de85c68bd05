"""CurveDoctor in TRL's SFTTrainer: a tiny Llama with LoRA, no hub."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

for name in ("transformers", "trl", "peft", "datasets"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = pytest.mark.train

from datasets import Dataset
from peft import LoraConfig
from tiny import llama, sentences, tokenizer
from trl import SFTConfig, SFTTrainer

from diagnose import CurveDoctor, examine
from diagnose.readers import read


def test_a_lora_run_is_watched_and_read_back_alike(tmp_path: Path) -> None:
    words = tokenizer()
    args = SFTConfig(
        output_dir=str(tmp_path),
        max_steps=24,
        logging_steps=2,
        per_device_train_batch_size=4,
        learning_rate=2e-3,
        warmup_steps=2,
        max_length=32,
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="steps",
        save_steps=12,
        bf16=False,
        activation_checkpointing=False,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    doctor = CurveDoctor()
    data = {name: Dataset.from_dict({"text": texts}) for name, texts in (("a", sentences(80)[:60]), ("b", sentences(80)[60:]))}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        trainer = SFTTrainer(
            model=llama(len(words)),
            args=args,
            train_dataset=data["a"],
            eval_dataset=data,  # two sets: `eval_a_loss`, `eval_b_loss` and no `eval_loss`
            processing_class=words,
            peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        trainer.add_callback(doctor)
        trainer.train()
    trainer.save_state()
    assert not doctor.failed, out.getvalue()
    assert trainer.state.global_step == 24

    assert doctor.examination is not None
    live = doctor.examination.report()
    expected = {
        "method": "lora",
        "lora_r": 4,
        "lora_alpha": 8,
        "vocab_size": len(words),
        "learning_rate": 2e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 2,
        "max_steps": 24,
        "num_train_epochs": 2,  # what 24 steps of 4 come to with 60 examples
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "world_size": 1,
        "logging_steps": 2,
        "eval_steps": 6,
        "save_steps": 12,
        "max_length": 32,
        "fp16": False,
        "bf16": False,
        "logging_nan_inf_filter": True,
    }
    assert {name: live.settings.get(name) for name in expected} == expected
    assert {"train/loss", "eval/a_loss", "eval/b_loss"} <= set(doctor.examination.curves.tracks)

    (run,) = read(tmp_path)
    later = examine(run)
    assert {name: run.settings.get(name) for name in expected} == expected
    assert repr((later.findings, later.verdict, later.skips, later.best)) == repr(
        (live.findings, live.verdict, live.skips, live.best)
    )
    for folder in (tmp_path, tmp_path / "checkpoint-12", tmp_path / "checkpoint-24"):
        assert json.loads((folder / "curve_doctor.json").read_text())["settings"]["method"] == "lora"
