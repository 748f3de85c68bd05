"""The tokenizer and the model, by method: 4-bit with adapters, 16-bit with adapters, or all weights.

What goes wrong here is mostly a name, a file or a version, so every failure becomes one line with the cure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.hardware import Hardware, local_rank
from diagnose.errors import TrainingInputError

_ADAPTER = "adapter_config.json"


def load_model_config(config: TrainConfig) -> Any:
    """The model's configuration: no weights are read.

    Raises:
        TrainingInputError: there is no such model.
    """
    if (Path(config.model) / _ADAPTER).is_file():
        raise TrainingInputError(
            f"{config.model} is an adapter, not a model: give its base with --model, and the adapter with --start-from"
        )
    with told(config.model):
        return AutoConfig.from_pretrained(config.model)


def load_tokenizer(config: TrainConfig) -> Any:
    """The model's tokenizer.

    Raises:
        TrainingInputError: there is none.
    """
    with told(config.model, "tokenizer"):
        return AutoTokenizer.from_pretrained(config.model)


def load_model(config: TrainConfig, hardware: Hardware, model_config: Any) -> Any:
    """The model to train, without adapters of its own unless it starts from some.

    Args:
        config: of the training.
        hardware: to load it onto.
        model_config: the model's own, with the pad token set.

    Raises:
        TrainingInputError: it cannot be loaded; the message says why.
    """
    source = config.model
    if config.method == "full" and config.start_from is not None:
        source = config.start_from
    options: dict[str, Any] = {"dtype": hardware.dtype, "attn_implementation": hardware.attention}
    if config.method == "qlora":
        options["quantization_config"] = quantization(config, hardware)
    if not hardware.is_fsdp:
        # FSDP shards from the CPU by itself; otherwise the weights go straight to this process's GPU.
        options["device_map"] = {"": local_rank() if hardware.device == "cuda" else "cpu"}
    with told(source):
        model = AutoModelForCausalLM.from_pretrained(source, config=model_config, **options)
    keep_trainable(model)
    model.config.use_cache = False  # keys and values of earlier tokens are of no use in training
    if config.method != "full" and config.start_from is not None:
        model = _with_adapter(model, config.start_from)
    return model


def quantization(config: TrainConfig, hardware: Hardware) -> BitsAndBytesConfig:
    """4 bits a weight; the scales are quantized as well. FSDP shards tensors of one type, so it stores them as 16-bit ones."""
    storage = {"bnb_4bit_quant_storage": hardware.dtype} if hardware.is_fsdp else {}
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=config.quant_type,
        bnb_4bit_use_double_quant=config.double_quant,
        bnb_4bit_compute_dtype=hardware.dtype,
        **storage,
    )


def adapters(config: TrainConfig) -> LoraConfig | None:
    """The adapters to add; None where all weights are trained, or where the model starts from adapters."""
    if config.method == "full" or config.start_from is not None:
        return None
    target = config.lora_target
    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.alpha,
        lora_dropout=config.lora_dropout,
        target_modules=target if target == "all-linear" else [name.strip() for name in target.split(",")],
        task_type="CAUSAL_LM",
    )


def keep_trainable(model: Any) -> None:
    """Keep bitsandbytes from repacking 4-bit weights in an evaluation.

    On a CPU with AVX512-BF16 it repacks them for inference, never unpacks them, and its kernel has no backward pass: every
    gradient after the first evaluation is wrong, while the loss looks as before (bitsandbytes 0.50).
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def _with_adapter(model: Any, folder: str) -> Any:
    """The model with the adapter of a folder, to be trained on."""
    path = Path(folder)
    if not (path / _ADAPTER).is_file():
        raise TrainingInputError(f"{folder} holds no adapter to start from: it has no {_ADAPTER}")
    with told(folder, "adapter"):
        return PeftModel.from_pretrained(model, folder, is_trainable=True)


@contextmanager
def told(source: str, what: str = "model") -> Iterator[None]:
    """Turn what loading raises into one line with the cure.

    Raises:
        TrainingInputError: in place of what was raised.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise  # has cures of its own
    except (SafetensorError, json.JSONDecodeError, EOFError) as error:
        raise TrainingInputError(f"the {what} in {source} is damaged ({_first(error)}): copy or download it again") from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, TypeError) as error:
        raise TrainingInputError(_reason(source, what, error)) from error


def _reason(source: str, what: str, error: Exception) -> str:
    path = Path(source)
    if path.is_dir():
        names = sorted(p.name for p in path.iterdir())
        if what != "adapter" and "config.json" not in names:
            return f"{source} holds no model: it has no config.json, only {', '.join(names[:8]) or 'nothing'}"
        return f"cannot load the {what} in {source}: {_first(error)}"
    text = str(error)
    if "gated" in text or "401" in text:
        return f"no access to the {what} {source}: accept its terms on the hub and log in with `hf auth login`"
    if isinstance(error, OSError):
        return (
            f"no {what} {source!r}: there is no such folder, and it is neither in the local cache nor to be had from the hub; "
            "give a folder with config.json and safetensors, or a name that the hub knows"
        )
    return f"cannot load the {what} {source}: {_first(error)}"


def _first(error: Exception) -> str:
    """The first line of what an error says, kept short."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
