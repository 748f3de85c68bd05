"""The hyperparameters in a model card: the `README.md` that the Trainer writes beside what it trained."""

from __future__ import annotations

import re
from typing import Any

from diagnose.model import Setting

_BEGINS = "hyperparameters were used during training"
_LINE = re.compile(r"^\s*[-*]\s+(\w+):\s*(\S.*?)\s*$", re.MULTILINE)
_OPTIMIZER = re.compile(r"^Use (?:OptimizerNames\.)?(\w+)")
#: The Trainer's own names of what a card calls otherwise.
_NAMES = {
    "num_devices": "world_size",
    "num_epochs": "num_train_epochs",
    "training_steps": "max_steps",
    "lr_scheduler_warmup_ratio": "warmup_ratio",
    "lr_scheduler_warmup_steps": "warmup_steps",
}
_TAKEN = frozenset(
    {
        "learning_rate",
        "train_batch_size",
        "gradient_accumulation_steps",
        "total_train_batch_size",
        "lr_scheduler_type",
        "seed",
        "weight_decay",
        *_NAMES.values(),
    }
)


def from_card(text: str) -> dict[str, Setting]:
    r"""Settings in a model card; empty for any other text.

    A card leaves out what is at its default: one device, one accumulated step, no warm-up.

    >>> head = "The following hyperparameters were used during training:\n"
    >>> from_card(head + "- learning_rate: 2e-05\n- train_batch_size: 8\n- seed: 42\n- num_epochs: 3\n")
    {'learning_rate': 2e-05, 'train_batch_size': 8, 'seed': 42, 'num_train_epochs': 3, 'total_train_batch_size': 8}
    >>> from_card("# My project\n- learning_rate: 2e-05")
    {}
    """
    _, begins, rest = text.partition(_BEGINS)
    if not begins:
        return {}
    found: dict[str, Setting] = {}
    told = _LINE.findall(re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0])
    for key, value in told:
        name = _NAMES.get(key, key)
        if name in _TAKEN:
            found[name] = _number(value)
        elif key == "optimizer" and (optim := _OPTIMIZER.match(value)):
            found["optim"] = optim[1].lower()
        elif key == "mixed_precision_training" and value.lower() == "native amp":
            found["fp16"] = True
    batch = found.get("train_batch_size")
    is_whole = not {"world_size", "gradient_accumulation_steps", "total_train_batch_size"} & found.keys()
    if isinstance(batch, int) and is_whole:
        found["total_train_batch_size"] = batch
    if "lr_scheduler_type" in found and not {"warmup_ratio", "warmup_steps"} & found.keys():
        found["warmup_steps"] = 0
    return found


def _number(text: str) -> Any:
    """A whole number, a number, or the text itself."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
