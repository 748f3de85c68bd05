"""From a model's configuration and a GPU's size to a batch, accumulation and checkpointing that fit, before loading anything.

The order is that of the cures for out-of-memory: a smaller batch with more accumulation (the same gradient), then gradient
checkpointing (about 30 % slower), then a shorter sequence, which is only advised.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.callbacks.qlora.memory import ALLOWANCE, METHODS, Bytes, Method, course_bytes, predict
from diagnose.callbacks.qlora.shape import ModelShape, shape_of
from diagnose.errors import ConfigError

#: A plan fits if it would even were the prediction a tenth too low.
HEADROOM = 1.1

#: The batch where the GPU's size is not known: that of a 24 GB card.
USUAL_BATCH = 4

_SHORTER = (4096, 2048, 1024, 512)
_TITLES = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
_PARTS = (
    ("weights", "weights"),
    ("adapters", "adapters"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer (8-bit Adam)"),
    ("activations", "activations"),
    ("head", "head and loss"),
)


@dataclass(frozen=True)
class Plan:
    """How to train a model so that it fits.

    Attributes:
        shape: of the model.
        method: what is trained.
        per_device_batch: examples a device and micro-batch.
        accumulation: micro-batches a step.
        devices: GPUs, each with the whole model.
        checkpointing: the layers are computed again in the backward pass.
        max_length: tokens an example, at most.
        lora_r: rank of the adapters.
        parts: predicted bytes at the peak of a step, by part, on each GPU.
        gpu_bytes: size of a GPU; None if not known.
        fits: the peak and `ALLOWANCE` are within it, with `HEADROOM`; True where the size is not known.
        notes: what to know, a sentence each.
        beside: the plans of the other methods, for comparison.
    """

    shape: ModelShape
    method: Method
    per_device_batch: int
    accumulation: int
    devices: int
    checkpointing: bool
    max_length: int
    lora_r: int
    parts: Bytes
    gpu_bytes: int | None
    fits: bool
    notes: tuple[str, ...] = ()
    beside: tuple[Plan, ...] = ()

    @property
    def peak(self) -> int:
        """Predicted peak of the tensors, in bytes: what `torch.cuda.max_memory_allocated` would say."""
        return self.parts.total

    @property
    def effective_batch(self) -> int:
        """Examples a step, over all devices."""
        return self.per_device_batch * self.accumulation * self.devices

    def __rich__(self) -> RenderableType:
        return Group(_table(self), *(Text(note) for note in self.notes))


def plan_memory(
    config: Mapping[str, Any] | Any,
    *,
    method: Method = "qlora",
    max_length: int,
    gpu_bytes: int | None,
    effective_batch: int = 16,
    lora_r: int = 16,
    devices: int = 1,
    checkpointing: bool | None = None,
    batch: int | None = None,
    name: str = "",
) -> Plan:
    """Plan a training.

    Args:
        config: a model's config.json, or transformers' configuration object.
        method: what is trained.
        max_length: tokens an example, at most.
        gpu_bytes: memory of one GPU; None if not known, and then nothing is searched for.
        effective_batch: examples a step, over all devices.
        lora_r: rank of the adapters, on all linear layers.
        devices: GPUs, each with the whole model (DDP).
        checkpointing: whether to; None: only where it does not fit without.
        batch: examples a device and micro-batch; None: the largest power of two that fits.
        name: what to call the model.

    Raises:
        ConfigError: a number that is not positive, or a batch that the devices exceed.
        TrainingInputError: the configuration lacks a size, or is of a kind that is not planned for.
    """
    numbers = {"max_length": max_length, "effective_batch": effective_batch, "lora_r": lora_r, "devices": devices}
    numbers |= {} if batch is None else {"batch": batch}
    for what, value in numbers.items():
        if value < 1:
            raise ConfigError(f"{what} is {value}; expected 1 or more")
    shape = shape_of(config, name)
    made = {
        each: _plan(shape, each, max_length, gpu_bytes, effective_batch, lora_r, devices, checkpointing, batch)
        for each in METHODS
    }
    notes = (*shape.notes, *_notes(made[method], effective_batch, made))
    return replace(made[method], notes=notes, beside=tuple(made[each] for each in METHODS if each != method))


def parse_bytes(text: str) -> int:
    """A GPU's size as people write it, in bytes. GB is 1024³ bytes, as makers of cards count.

    Raises:
        ConfigError: it is no size.

    >>> parse_bytes("24GB") == parse_bytes("24") == parse_bytes("24 GiB") == 24 * 1024**3
    True
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(G|GB|GiB|M|MB|MiB)?\s*", text, re.IGNORECASE)
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"{text!r} is no memory size; expected something like 24GB or 16000MB")
    unit = 1024**2 if (found[2] or "G").upper().startswith("M") else 1024**3
    return round(float(found[1]) * unit)


def _plan(
    shape: ModelShape,
    method: Method,
    max_length: int,
    gpu_bytes: int | None,
    effective_batch: int,
    lora_r: int,
    devices: int,
    checkpointing: bool | None,
    batch: int | None,
) -> Plan:
    """The first of the candidates that fits; the smallest where none does."""
    a_device = math.ceil(effective_batch / devices)
    batches = [2**i for i in range(a_device.bit_length() - 1, -1, -1)] if batch is None else [batch]
    if gpu_bytes is None and batch is None:
        batches = [min(USUAL_BATCH, batches[0])]
    made = None
    for is_checkpointed in (False, True) if checkpointing is None else (checkpointing,):
        for per_device_batch in batches:
            accumulation = math.ceil(a_device / per_device_batch)
            parts = predict(
                shape,
                method=method,
                batch=per_device_batch,
                length=max_length,
                checkpointing=is_checkpointed,
                lora_r=lora_r,
                accumulated=accumulation > 1,
            )
            fits = gpu_bytes is None or parts.total * HEADROOM + ALLOWANCE <= gpu_bytes
            made = Plan(
                shape,
                method,
                per_device_batch,
                accumulation,
                devices,
                is_checkpointed,
                max_length,
                lora_r,
                parts,
                gpu_bytes,
                fits,
            )
            if fits:
                return made
    assert made is not None  # there is at least one candidate
    return made


def _notes(plan: Plan, effective_batch: int, made: Mapping[Method, Plan]) -> list[str]:
    notes = []
    if plan.gpu_bytes is None:
        notes.append("no GPU size given: the batch is that of a 24 GB card, and whether it fits is not checked")
    elif not plan.fits:
        notes.append(_cure(plan, made))
    if plan.effective_batch != effective_batch:
        notes.append(f"effective batch {plan.effective_batch}, not {effective_batch}: batch, accumulation and devices multiply")
    return notes


def _cure(plan: Plan, made: Mapping[Method, Plan]) -> str:
    assert plan.gpu_bytes is not None
    shorter = None
    for length in (choice for choice in _SHORTER if choice < plan.max_length):
        parts = predict(plan.shape, method=plan.method, batch=1, length=length, checkpointing=True, lora_r=plan.lora_r)
        if parts.total * HEADROOM + ALLOWANCE <= plan.gpu_bytes:
            shorter = f"--max-length {length}"
            break
    other = next((f"--method {each}" for each in ("lora", "qlora") if made[each].fits and each != plan.method), None)
    cures = [cure for cure in (shorter, other) if cure is not None] or ["a smaller model or a larger GPU"]
    asked = "" if plan.per_device_batch == 1 and plan.checkpointing else "a smaller batch with checkpointing, or "
    return f"does not fit: {_gb(plan.peak + ALLOWANCE)} GB of {_gb(plan.gpu_bytes)} GB; try {asked}{' or '.join(cures)}"


def _table(plan: Plan) -> Table:
    plans = {each.method: each for each in (plan, *plan.beside)}
    order = [plans[method] for method in ("full", "lora", "qlora") if method in plans]
    table = Table(title=f"{plan.shape.name}: memory of a training step, GB a GPU", title_justify="left")
    table.add_column("")
    for each in order:
        table.add_column(_TITLES[each.method], justify="right", style="bold" if each is plan else "")
    for part, title in _PARTS:
        table.add_row(title, *(_gb(getattr(each.parts, part)) for each in order))
    table.add_row("CUDA and the like", *(_gb(ALLOWANCE) for _ in order))
    table.add_row("total", *(_gb(each.peak + ALLOWANCE) for each in order), style="bold", end_section=True)
    if plan.gpu_bytes is not None:
        table.add_row(f"fits {_gb(plan.gpu_bytes)} GB", *("yes" if each.fits else "no" for each in order))
    table.add_row("batch x accumulation", *(f"{each.per_device_batch} x {each.accumulation}" for each in order))
    if plan.devices > 1:
        table.add_row("GPUs", *(str(each.devices) for each in order))
    table.add_row("checkpointing", *("yes" if each.checkpointing else "no" for each in order))
    table.add_row("max_length", *(f"{each.max_length:,}" for each in order), end_section=True)
    counted = [sum(course_bytes(each.shape.n_params, each.shape.n_lora(each.lora_r), each.method).values()) for each in order]
    table.add_row("as courses count", *(_gb(count) for count in counted))
    return table


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:,.1f}"
