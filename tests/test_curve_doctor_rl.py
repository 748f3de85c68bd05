"""CurveDoctor in TRL's DPO, GRPO and reward trainers: it knows what the loss means and leaves a healthy run alone."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

for name in ("transformers", "trl", "peft", "datasets"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = pytest.mark.train

from datasets import Dataset
from peft import LoraConfig
from tiny import llama, tokenizer
from transformers import LlamaForCausalLM, LlamaForSequenceClassification
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer

from diagnose import CurveDoctor
from diagnose.model import Kind, Report, Severity

USUAL: dict[str, Any] = {
    "logging_steps": 1,
    "save_strategy": "no",
    "bf16": False,
    "activation_checkpointing": False,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "seed": 42,
}


def trained(trainer: Any, steps: int | None = None) -> tuple[Report, set[str]]:
    """The live report on a training that must end at `steps`, its last step if None, and the metrics that were logged."""
    doctor = CurveDoctor()
    trainer.add_callback(doctor)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        trainer.train()
    assert not doctor.failed, out.getvalue()
    assert trainer.state.global_step == (steps or trainer.args.max_steps)
    assert doctor.examination is not None
    return doctor.examination.report(), set(doctor.examination.curves.tracks)


def saved(folder: Path, vocab_size: int) -> LlamaForCausalLM:
    """A model that lies in a folder, from where TRL loads its reference."""
    llama(vocab_size).save_pretrained(folder / "base")
    return LlamaForCausalLM.from_pretrained(folder / "base")


def dpo(folder: Path, rate: float, steps: int, *, adapter: LoraConfig | None = None) -> DPOTrainer:
    """Training on pairs that differ in one word; the reference is a copy that TRL loads, or the model without its adapter."""
    words = tokenizer()
    pairs = {"prompt": ["the cat"] * 32, "chosen": [" learns quickly."] * 32, "rejected": [" diverges on monday."] * 32}
    args = DPOConfig(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=rate, max_length=32, **USUAL
    )
    data = Dataset.from_dict(pairs)
    evals = None
    if adapter is not None:
        args.eval_strategy, args.eval_steps, evals = "steps", 8, data.select(range(8))
    model = saved(folder, len(words))
    return DPOTrainer(
        model=model, args=args, train_dataset=data, eval_dataset=evals, processing_class=words, peft_config=adapter
    )


def test_a_healthy_dpo_run(tmp_path: Path) -> None:
    report, names = trained(dpo(tmp_path, 1e-4, 24))
    assert report.kind is Kind.PREFERENCE
    assert {"train/rewards/margins", "train/rewards/chosen", "train/rewards/rejected", "train/logps/chosen"} <= names
    assert {f.severity for f in report.findings} <= {Severity.INFO}, report.headline
    assert "reference-mismatch" not in {skip.name for skip in report.skips}, "the first log, at step 1, was judged"


def test_a_dpo_run_with_an_adapter_and_evaluations(tmp_path: Path) -> None:
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    report, names = trained(dpo(tmp_path, 1e-3, 24, adapter=adapter))
    assert {"eval/loss", "eval/rewards/margins"} <= names
    assert not report.stop.stop
    assert report.settings["method"] == "lora"


def test_a_dpo_run_whose_weights_do_not_move_is_ended(tmp_path: Path) -> None:
    report, _ = trained(dpo(tmp_path, 1e-15, 60), steps=50)
    assert report.stop.because is not None
    assert report.stop.because.name == "dpo-no-signal"


def test_a_grpo_run_with_a_varied_reward(tmp_path: Path) -> None:
    words = tokenizer()
    args = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=24,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        learning_rate=1e-3,
        beta=0.04,
        **USUAL,
    )

    def vowels(completions: list[str], **_: Any) -> list[float]:
        return [sum(c in "aeiou" for c in text) / 8 for text in completions]

    trainer = GRPOTrainer(
        model=saved(tmp_path, len(words)),
        reward_funcs=[vowels],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["the cat", "a dog"] * 16}),
        processing_class=words,
    )
    report, names = trained(trainer)
    assert report.kind is Kind.RL
    wanted = {"train/reward", "train/reward_std", "train/frac_reward_zero_std", "train/kl", "train/rewards/vowels/mean"}
    assert wanted | {"train/completions/clipped_ratio"} <= names
    # A random model never ends by itself, so that all its completions are cut off at eight tokens is right to say.
    assert {f.name for f in report.findings if f.severity is not Severity.INFO} <= {"clipped-completions"}, report.headline
    assert {"loss-divergence", "flat-loss", "zero-loss"} <= {skip.name for skip in report.skips}
    assert not report.stop.stop


@pytest.mark.parametrize("with_adapter", [False, True])
def test_a_reward_model_with_evaluations(tmp_path: Path, with_adapter: bool) -> None:
    words = tokenizer()
    good, bad = [" learns quickly."] * 32, [" diverges on monday."] * 32
    pairs = Dataset.from_dict({"chosen": ["the cat" + text for text in good], "rejected": ["the cat" + text for text in bad]})
    model = LlamaForSequenceClassification(llama(len(words)).config)
    model.config.num_labels = 1
    args = RewardConfig(
        output_dir=str(tmp_path),
        max_steps=24,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        max_length=32,
        eval_strategy="steps",
        eval_steps=6,
        **USUAL,
    )
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="SEQ_CLS") if with_adapter else None
    trainer = RewardTrainer(
        model=LlamaForSequenceClassification(model.config),
        args=args,
        train_dataset=pairs,
        eval_dataset=pairs,
        processing_class=words,
        peft_config=adapter,
    )
    report, names = trained(trainer)
    assert {"train/loss", "eval/loss", "train/accuracy"} <= names
    assert not report.stop.stop
    assert {f.severity for f in report.findings if f.metric != "settings"} <= {Severity.INFO}, report.headline
