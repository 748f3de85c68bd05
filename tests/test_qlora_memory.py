"""The fake step against a real one, and the formula against both, on models small enough to be real on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

for name in ("torch", "transformers", "peft"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = pytest.mark.train

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from diagnose.callbacks.qlora.fake_step import LiveBytes, count_step
from diagnose.callbacks.qlora.memory import METHODS, Method, predict
from diagnose.callbacks.qlora.shape import shape_of

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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("changed", [{}, {"model_type": "qwen3", "head_dim": 64}, {"model_type": "starcoder2"}], ids=str)
def test_the_formula_agrees_with_a_counted_small_model(method: Method, checkpointing: bool, changed: dict[str, Any]) -> None:
    config = SMALL | changed
    setting: dict[str, Any] = {"method": method, "batch": 2, "length": 256, "checkpointing": checkpointing}
    count = count_step(config, **setting)
    parts = predict(shape_of(config), **setting)
    assert parts.total == pytest.approx(count.peak, rel=0.05)
    if method != "full":
        assert count.n_trained == shape_of(config).n_lora(16)


@pytest.mark.parametrize("method", ["qlora", "lora"])
@pytest.mark.parametrize("checkpointing", [True, False])
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
