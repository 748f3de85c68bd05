"""What files beside a log tell of the training's settings, by the Trainer's own names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeGuard

from diagnose.errors import ReadError
from diagnose.model import Note, Setting
from diagnose.readers import training_args
from diagnose.readers.files import read_text
from diagnose.readers.model_card import from_card
from diagnose.readers.own_file import FILE_NAME

#: Fields of TrainerState that say how the training was set up or where its best checkpoint is.
_STATE = (
    "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size", "best_metric",
    "best_global_step", "best_model_checkpoint", "num_input_tokens_seen",
)  # fmt: skip
#: Fields of TrainingArguments and its subclasses that a diagnosis can make use of.
_ARGUMENTS = (
    "learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size", "per_device_eval_batch_size",
    "gradient_accumulation_steps", "world_size", "warmup_steps", "warmup_ratio", "lr_scheduler_type", "weight_decay",
    "max_grad_norm", "optim", "adam_beta1", "adam_beta2", "adam_epsilon", "fp16", "bf16", "tf32", "logging_strategy",
    "logging_steps", "logging_first_step", "logging_nan_inf_filter", "eval_steps", "eval_strategy", "evaluation_strategy",
    "save_steps", "save_strategy", "save_total_limit", "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
    "label_smoothing_factor", "neftune_noise_alpha", "gradient_checkpointing", "max_length", "max_seq_length", "packing",
    "beta", "seed",
)  # fmt: skip
#: Fields for which None says something: there is no limit.
_NONE_IS_ZERO = ("save_total_limit", "max_grad_norm")
#: What the Trainer writes for "no limit" on epochs when the data set has no length.
_ENDLESS = 2**63 - 1
_LIMIT = 1 << 24


def from_state(state: Mapping[str, Any]) -> dict[str, Setting]:
    """Settings that a `trainer_state.json` holds; an absolute path is cut to its last part, as it is true on one host only.

    >>> from_state({"max_steps": 10, "num_train_epochs": 2**63 - 1, "best_model_checkpoint": "/home/me/out/checkpoint-5"})
    {'max_steps': 10, 'best_model_checkpoint': 'checkpoint-5'}
    """
    found = {key: state[key] for key in _STATE if _is_plain(state.get(key))}
    if found.get("num_train_epochs") == _ENDLESS:
        del found["num_train_epochs"]
    best = found.get("best_model_checkpoint")
    if isinstance(best, str):
        for kind in (PurePosixPath, PureWindowsPath):
            if kind(best).is_absolute():
                found["best_model_checkpoint"] = kind(best).name
    return found


def from_arguments(text: str) -> dict[str, Setting]:
    """Settings in the TrainingArguments that the Trainer writes into its event files, as JSON text.

    >>> from_arguments('{"learning_rate": 5e-05, "output_dir": "out", "seed": 42}')
    {'learning_rate': 5e-05, 'seed': 42}
    """
    return of_arguments(_parse(text))


def of_arguments(fields: Mapping[str, Any]) -> dict[str, Setting]:
    """What the fields of TrainingArguments tell. What is not in force is left out, and so is what only the Trainer can count.

    >>> of_arguments({"max_steps": -1, "num_train_epochs": 3.0, "save_steps": 0.1, "save_total_limit": None})
    {'num_train_epochs': 3.0, 'save_total_limit': 0}
    >>> of_arguments({"max_steps": 100, "num_train_epochs": 3.0, "eval_strategy": "no", "eval_steps": 500})
    {'max_steps': 100, 'eval_strategy': 'no'}
    """
    found = {key: fields[key] for key in _ARGUMENTS if _is_plain(fields.get(key)) and fields[key] != _ENDLESS}
    for key in _NONE_IS_ZERO:
        if key in fields and fields[key] is None:
            found[key] = 0
    if _above_zero(found.get("max_steps")):
        found.pop("num_train_epochs", None)  # a default then, that counts for nothing
    else:
        found.pop("max_steps", None)
    for kind in ("logging", "eval", "save"):
        steps, strategy = found.get(f"{kind}_steps"), str(found.get(f"{kind}_strategy", "steps"))
        if strategy != "steps" or (_above_zero(steps) and float(steps) < 1):
            found.pop(f"{kind}_steps", None)  # a share of the steps is known to the Trainer alone
    batch, accumulated, devices = (
        found.get(key) for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "world_size")
    )
    if isinstance(batch, int) and isinstance(accumulated, int) and isinstance(devices, int):
        on_each = fields.get("_n_gpu")
        found["total_train_batch_size"] = batch * accumulated * devices * (on_each if _above_zero(on_each) else 1)
    return found


def _above_zero(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and value > 0


def from_folder(folders: Sequence[Path], notes: list[Note]) -> dict[str, Setting]:
    """Settings from the files beside a log: model card, arguments, adapter, model, and what CurveDoctor left there.

    Args:
        folders: where to look, the best source first.
        notes: what could not be read is told here.
    """
    adapter, model, own = (_first(folders, name) for name in ("adapter_config.json", "config.json", FILE_NAME))
    found: dict[str, Setting] = _from_cards(folders) | _from_pickles(folders, notes)
    labels = model.get("num_labels", len(model["id2label"]) if isinstance(model.get("id2label"), dict) else None)
    for key, value in (("num_labels", labels), ("vocab_size", model.get("vocab_size"))):
        if isinstance(value, int) and not isinstance(value, bool):
            found[key] = value
    if str(adapter.get("peft_type")).upper() == "LORA":
        # Only the base model's name tells: bitsandbytes checkpoints are called so by those who publish them.
        found["method"] = "qlora" if "4bit" in str(adapter.get("base_model_name_or_path")).lower() else "lora"
        for key, name in (("r", "lora_r"), ("lora_alpha", "lora_alpha")):
            if isinstance(adapter.get(key), int | float) and not isinstance(adapter.get(key), bool):
                found[name] = adapter[key]
    settings = own.get("settings")
    if isinstance(settings, dict):
        found |= {key: value for key, value in settings.items() if _is_plain(value)}
    return found


def _from_cards(folders: Sequence[Path]) -> dict[str, Setting]:
    """What the first model card with hyperparameters tells; any other README.md is passed over."""
    for folder in folders:
        try:
            found = from_card(read_text(folder / "README.md", _LIMIT))
        except ReadError:
            continue
        if found:
            return found
    return {}


def _from_pickles(folders: Sequence[Path], notes: list[Note]) -> dict[str, Setting]:
    """What the first `training_args.bin` tells."""
    for folder in folders:
        path = folder / "training_args.bin"
        try:
            path.stat()
        except (OSError, ValueError):  # ValueError: a null byte in the path
            continue
        try:
            return of_arguments(training_args.read(path))
        except ReadError as error:
            notes.append(Note("unread-settings", f"{path.name} beside the log was left out: {error}"))
            return {}
    return {}


def _first(folders: Sequence[Path], name: str) -> dict[str, Any]:
    """The first of these files that is an object in JSON; empty when there is none. A broken one is passed over."""
    for folder in folders:
        try:
            content = _parse(read_text(folder / name, _LIMIT))
        except ReadError:
            continue
        if content:
            return content
    return {}


def _parse(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_plain(value: Any) -> bool:
    """Whether a value can be a setting; None says nothing and is left out."""
    return isinstance(value, str | int | float)
