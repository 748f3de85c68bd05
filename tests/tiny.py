"""Models, data and trainers so small that a whole training takes a second on one CPU thread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """`n` points in eight dimensions, each with a class of four: given by the point, or drawn at random."""

    def __init__(self, n: int, *, seed: int, random_labels: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 8, generator=generator)
        self.labels = self.x[:, :4].argmax(-1)
        if random_labels:
            self.labels = torch.randint(0, 4, (n,), generator=generator)

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
    **changed: Any,
) -> Trainer:
    """A real Trainer over a Classifier; `changed` are arguments that differ from the usual ones."""
    args = arguments(folder, **changed)
    set_seed(42)
    made = Trainer(
        model=model or Classifier(),
        args=args,
        train_dataset=Points(n, seed=1, random_labels=random_labels),
        eval_dataset=Points(64, seed=2, random_labels=random_labels),
    )
    for callback in callbacks:
        made.add_callback(callback)
    return made
