"""What a Trainer tells of its settings, as plain JSON values by the Trainer's own names."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any

from diagnose.model import Setting

#: Read from the arguments as they are. Those of TRL are absent from a plain Trainer's arguments, and then left out.
_ARGUMENTS = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "world_size",
    "max_grad_norm",
    "weight_decay",
    "optim",
    "fp16",
    "bf16",
    "gradient_checkpointing",
    "logging_strategy",
    "eval_strategy",
    "save_strategy",
    "save_total_limit",
    "load_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
    "logging_nan_inf_filter",
    "seed",
    "max_length",
    "packing",
    "beta",
)
#: Arguments for which None says something: there is no limit.
_NONE_IS_ZERO = ("save_total_limit", "max_grad_norm")


def read_settings(args: Any, state: Any, model: Any = None) -> dict[str, Setting]:
    """The settings of a training that is about to begin; what is not told is left out.

    Only names and flags are read, never a parameter's values or shape: DeepSpeed and FSDP may have cut them up.

    Args:
        args: `TrainingArguments` or a subclass of it.
        state: the `TrainerState`, which knows the steps that ratios and epochs come to.
        model: as the Trainer hands it to callbacks.
    """
    settings = {name: getattr(args, name, None) for name in _ARGUMENTS}
    planned = getattr(state, "max_steps", 0)
    settings["max_steps"] = planned if planned and planned > 0 else None
    if (getattr(args, "max_steps", 0) or 0) > 0:
        # The steps rule then, and the epochs in the arguments are a default that counts for nothing.
        settings["num_train_epochs"] = getattr(state, "num_train_epochs", None)
    if settings["num_train_epochs"] == sys.maxsize:  # the Trainer's word for "data without an end"
        settings["num_train_epochs"] = None
    for name in _NONE_IS_ZERO:
        if hasattr(args, name) and settings[name] is None:
            settings[name] = 0
    settings["total_train_batch_size"] = _effective_batch(args, state)
    for kind in ("logging", "eval", "save"):
        if _plain(settings[f"{kind}_strategy"]) == "steps":
            settings[f"{kind}_steps"] = getattr(state, f"{kind}_steps", None)
    settings |= _model_settings(model)
    plain = {name: _plain(value) for name, value in settings.items()}
    return {name: value for name, value in plain.items() if value is not None}


def _effective_batch(args: Any, state: Any) -> int | None:
    """Examples that an update averages over, on all devices together; None where one of the factors is not told."""
    # `train_batch_size` counts every GPU of this process, `world_size` the processes. Only the state knows of a batch that
    # `auto_find_batch_size` has made smaller; without it a resumed state tells the batch of the run before.
    found = getattr(state, "train_batch_size", None) if getattr(args, "auto_find_batch_size", False) else None
    device: Any = found or getattr(args, "train_batch_size", None)
    factors: list[Any] = [device, *(getattr(args, name, None) for name in ("gradient_accumulation_steps", "world_size"))]
    return math.prod(factors) if all(isinstance(factor, int) for factor in factors) else None


def _model_settings(model: Any) -> dict[str, Any]:
    """What is trained, and between how many classes or tokens it chooses."""
    model = getattr(model, "module", model)  # DistributedDataParallel and its like
    config = getattr(model, "config", None)
    if config is None:
        return {}
    return _method(model, config) | _choices(model, config)


def _method(model: Any, config: Any) -> dict[str, Any]:
    """`lora`, `qlora`, another adapter's name, or `full`; nothing where the usual learning rates are not known."""
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, Mapping) and adapters:
        active = getattr(model, "active_adapter", None)
        adapter = adapters.get(active) if isinstance(active, str) else None
        adapter = adapter if adapter is not None else next(iter(adapters.values()))
        kind = str(_plain(getattr(adapter, "peft_type", "")) or "").lower()
        if kind != "lora":
            return {"method": kind or None}
        method = "qlora" if _is_four_bit(model, config) else "lora"
        return {"method": method, "lora_r": getattr(adapter, "r", None), "lora_alpha": getattr(adapter, "lora_alpha", None)}
    # A model without a name was built from a configuration: it learns from nothing, at rates of its own. One with frozen
    # parts is somewhere between full and adapter training.
    named = bool(getattr(config, "name_or_path", None))
    parameters = getattr(model, "parameters", None)
    is_full = named and callable(parameters) and all(p.requires_grad for p in parameters())
    return {"method": "full"} if is_full else {}


def _is_four_bit(model: Any, config: Any) -> bool:
    if getattr(model, "is_loaded_in_4bit", False):
        return True
    stored = getattr(config, "quantization_config", None)
    told = stored.get("load_in_4bit") if isinstance(stored, Mapping) else getattr(stored, "load_in_4bit", None)
    return bool(told)


def _choices(model: Any, config: Any) -> dict[str, Any]:
    """`num_labels` of a classifier, else `vocab_size`: every configuration has labels, but only a classifier means them."""
    inner = getattr(model, "get_base_model", None)
    name = type(inner() if callable(inner) else model).__name__
    if name.endswith("Classification"):
        labels = getattr(config, "num_labels", None)
        return {"num_labels": labels if isinstance(labels, int) and labels > 1 else None}
    text = getattr(config, "get_text_config", None)
    return {"vocab_size": getattr(text() if callable(text) else config, "vocab_size", None)}


def _plain(value: Any) -> Setting:
    """An enum's value, or what JSON knows; None for all else."""
    if isinstance(value, Enum):
        value = value.value
    return value if isinstance(value, str | int | float | bool) else None
