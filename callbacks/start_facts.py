"""What no curve shows of model, optimizer and machine: facts at the start of a training, for the rules to judge."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from diagnose.callbacks.sharding import is_sharded
from diagnose.model import Setting


def model_facts(args: Any, model: Any, optimizer: Any = None) -> dict[str, Setting]:
    """Counts and types of the parameters.

    Args:
        args: `TrainingArguments`.
        model: as the Trainer hands it to callbacks.
        optimizer: likewise; None where it is not made yet.

    Returns:
        `trainable_parameters`, `unoptimized_parameters` (trainable, but not held by the optimizer), `trainable_dtype` (that of
        most of them), `repacks_4bit`, `bf16_available`; what cannot be told is left out. Nothing of the parameters where they
        are cut up between processes.
    """
    facts: dict[str, Setting] = {}
    if torch.cuda.is_available():
        facts["bf16_available"] = torch.cuda.is_bf16_supported()
    if model is None or is_sharded(args) or not callable(getattr(model, "parameters", None)):
        return facts
    trainable = [p for p in model.parameters() if p.requires_grad]
    facts["trainable_parameters"] = sum(p.numel() for p in trainable)
    if optimizer is not None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        facts["unoptimized_parameters"] = sum(p.numel() for p in trainable if id(p) not in held)
    kinds: Counter[str] = Counter()
    for p in trainable:
        kinds[str(p.dtype).removeprefix("torch.")] += p.numel()
    if kinds:
        facts["trainable_dtype"] = kinds.most_common(1)[0][0]
    if getattr(args, "device", torch.device("cpu")).type == "cpu":
        facts["repacks_4bit"] = any(getattr(m, "support_avx512bf16_for_cpu", False) for m in model.modules())
    return facts
