"""The fake step against a real one, and the formula against both, on models small enough to be real on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

for name in ("torch", "transformers", "peft", "trl", "bitsandbytes", "datasets"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = pytest.mark.train

import torch
import trl.kernels.chunked_logprob
import trl.trainer.utils
from datasets import Dataset
from peft import LoraConfig
from tiny import tokenizer
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

from diagnose.callbacks.qlora import memory, stand_ins
from diagnose.callbacks.qlora.fake_step import LiveBytes, count_step
from diagnose.callbacks.qlora.memory import METHODS, Method, predict
from diagnose.callbacks.qlora.shape import shape_of
from diagnose.cli import main

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}

WIDER = SMALL | {"hidden_size": 256, "intermediate_size": 704}


def test_live_bytes_counts_storages_once_and_forgets_the_dead() -> None:
    counter = LiveBytes()
    with counter:
        a = torch.zeros(1024, dtype=torch.float32)
        view = a[:10]
        b = a + 1
        assert counter.now == 8192
        del b
        c = torch.zeros(1)
        assert (counter.now, counter.peak) == (4096 + 512, 8192)
        del a, view, c
    assert counter.now == 0


def test_live_bytes_counts_fake_tensors_alike() -> None:
    counter = LiveBytes()
    with FakeTensorMode(), counter:
        held = torch.zeros(10**9)
    assert counter.peak == 4 * 10**9
    del held


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("batch", [2])
def test_a_fake_step_needs_what_a_real_one_needs(method: Method, checkpointing: bool, batch: int) -> None:
    setting: dict[str, Any] = {"method": method, "batch": batch, "length": 64, "checkpointing": checkpointing}
    real = count_step(SMALL, is_fake=False, **setting)
    fake = count_step(SMALL, is_fake=True, **setting)
    assert fake == real


@pytest.mark.parametrize(("method", "checkpointing"), [("qlora", True), ("qlora", False), ("lora", True), ("full", False)])
@pytest.mark.parametrize("changed", [{}, {"model_type": "qwen3", "head_dim": 64}, {"model_type": "starcoder2"}], ids=str)
def test_the_formula_agrees_with_a_counted_small_model(method: Method, checkpointing: bool, changed: dict[str, Any]) -> None:
    config = SMALL | changed
    setting: dict[str, Any] = {"method": method, "batch": 2, "length": 256, "checkpointing": checkpointing}
    count = count_step(config, **setting)
    parts = predict(shape_of(config), **setting)
    assert parts.total == pytest.approx(count.peak, rel=0.05)
    if method != "full":
        assert count.n_trained == shape_of(config).n_lora(16)


@pytest.mark.parametrize(("method", "checkpointing"), [("qlora", False), ("lora", True)])
def test_dropout_in_the_adapters_is_counted(method: Method, checkpointing: bool) -> None:
    setting: dict[str, Any] = {"method": method, "batch": 2, "length": 256, "checkpointing": checkpointing}
    count, without = count_step(SMALL, lora_dropout=0.1, **setting), count_step(SMALL, **setting)
    assert predict(shape_of(SMALL), has_dropout=True, **setting).total == pytest.approx(count.peak, rel=0.05)
    assert count.peak > without.peak or checkpointing


def test_the_second_micro_batch_needs_the_gradients_of_the_first() -> None:
    setting: dict[str, Any] = {"method": "full", "batch": 1, "length": 16, "checkpointing": True}
    first, second = (count_step(SMALL, accumulated=accumulated, **setting) for accumulated in (False, True))
    assert second.peak > first.peak
    assert second.before == first.before


def test_the_command_checks_its_plan_by_a_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMALL))
    argv = ["plan", "--model", str(file), "--gpu", "8GB", "--max-length", "128", "--check"]
    assert main(argv) == 0
    assert "counted on tensors without content: " in capsys.readouterr().out
    file.write_text(json.dumps(SMALL | {"model_type": "nonesuch"}))
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert "--check cannot build" in err
    assert "nonesuch" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("batch", "checkpointing"), [(1, True), (2, False)])
@pytest.mark.filterwarnings("ignore")  # of the 4-bit CPU path, which other tests look after
def test_the_count_is_that_of_a_real_trainer(
    method: Method, batch: int, checkpointing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's SFTTrainer with PEFT and bitsandbytes, its real tensors counted over two steps of two micro-batches.

    On the CPU the head's kernels make tensors that CUDA's do not: what they compute is left out, what they hold is not. The
    head's tile is made narrower, or it would be all that there is to see.
    """
    for module, name in ((trl.trainer.utils, "_CHUNKED_LOGPROB_CHUNK_SIZE"), (memory, "HEAD_WIDTH"), (stand_ins, "HEAD_WIDTH")):
        monkeypatch.setattr(module, name, 1024)
    for name in ("_forward_tile", "_backward_tile", "_addmm_fp32"):
        monkeypatch.setattr(trl.kernels.chunked_logprob, name, lambda *_, **__: None)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**WIDER), dtype=torch.bfloat16)
    if method == "qlora":
        model.save_pretrained(tmp_path / "model")
        four_bit = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", quantization_config=four_bit, dtype=torch.bfloat16)
    lengths = [256 - (i % 2) * (batch > 1) for i in range(8)]  # in a batch of several, some are padded
    args = SFTConfig(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=2,
        max_length=256,
        bf16=True,
        use_cpu=True,
        optim="paged_adamw_8bit",
        activation_checkpointing=checkpointing,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        dataloader_pin_memory=False,
    )
    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list([{"input_ids": [5] * n, "labels": [5] * n} for n in lengths]),
        processing_class=tokenizer(),
        peft_config=None if method == "full" else LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    counter = LiveBytes()
    states = [getattr(getattr(module, "weight", None), "quant_state", None) for module in trainer.model.modules()]
    scales = [tensor for state in states if state is not None for tensor in (state.absmax, state.code, state.state2.absmax)]
    for tensor in (*trainer.model.parameters(), *trainer.model.buffers(), *scales):
        counter.add(tensor, "model")
    with counter:
        trainer.train()
    setting: dict[str, Any] = {"method": method, "batch": batch, "length": 256, "checkpointing": checkpointing}
    assert count_step(WIDER, **setting).peak == pytest.approx(counter.peak, rel=0.02)
    assert predict(shape_of(WIDER), **setting).total == pytest.approx(counter.peak, rel=0.05)
