"""Models, data and trainers so small that a whole training takes a second on one CPU thread."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """`n` points in eight dimensions, each with a class of four: given by the point, or drawn at random.

    The points at `broken` are NaN.
    """

    def __init__(self, n: int, *, seed: int, random_labels: bool = False, broken: Sequence[int] = ()) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 8, generator=generator)
        self.labels = self.x[:, :4].argmax(-1)
        if random_labels:
            self.labels = torch.randint(0, 4, (n,), generator=generator)
        self.x[list(broken)] = math.nan

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[i], "labels": self.labels[i]}


class Classifier(nn.Module):
    """One hidden layer, 612 weights. From training step `nan_from` on its loss is NaN, and so are soon its weights."""

    def __init__(self, nan_from: float = math.inf, hidden: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, 4))
        self.nan_from = nan_from
        self.n_steps = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        loss = nn.functional.cross_entropy(logits, labels)
        if self.training:
            self.n_steps += 1
            if self.n_steps >= self.nan_from:
                loss = loss * math.nan
        return {"loss": loss, "logits": logits}


def arguments(folder: Path, **changed: Any) -> TrainingArguments:
    """Arguments of a short run on the CPU that logs every step."""
    usual: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 24,
        "logging_steps": 1,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 64,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "seed": 42,
    }
    return TrainingArguments(**usual | changed)


def trainer(
    folder: Path,
    callbacks: Sequence[TrainerCallback],
    *,
    model: nn.Module | None = None,
    random_labels: bool = False,
    n: int = 64,
    broken: Sequence[int] = (),
    **changed: Any,
) -> Trainer:
    """A real Trainer over a Classifier; `changed` are arguments that differ from the usual ones."""
    args = arguments(folder, **changed)
    set_seed(42)
    made = Trainer(
        model=model or Classifier(),
        args=args,
        train_dataset=Points(n, seed=1, random_labels=random_labels, broken=broken),
        eval_dataset=Points(64, seed=2, random_labels=random_labels),
    )
    for callback in callbacks:
        made.add_callback(callback)
    return made


def sentences(n: int) -> list[str]:
    """Made-up sentences, always the same ones."""
    draw = random.Random(0)
    who = ["the cat", "a dog", "my loss", "the model", "this run"]
    does = ["learns", "diverges", "overfits", "stalls", "recovers"]
    how = ["quickly", "at step ten", "on monday", "after warmup", "without reason"]
    return [
        f"{draw.choice(who)} {draw.choice(does)} {draw.choice(how)} and {draw.choice(who)} {draw.choice(does)}."
        for _ in range(n)
    ]


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on `sentences`, about 300 tokens."""
    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        sentences(200),
        trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def llama(vocab_size: int) -> LlamaForCausalLM:
    """A random Llama of two layers and 32 dimensions."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    set_seed(0)
    return LlamaForCausalLM(config)
