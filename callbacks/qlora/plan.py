"""From a model's configuration and a GPU's size to a batch, accumulation and checkpointing that fit, before loading anything.

The order is that of the cures for out-of-memory: a smaller batch with more accumulation (the same gradient), then gradient
checkpointing (about 30 % slower), then a shorter sequence, which is only advised.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from diagnose.callbacks.qlora.memory import ALLOWANCE, METHODS, Bytes, Method, predict
from diagnose.callbacks.qlora.plan_table import gb, plan_table
from diagnose.callbacks.qlora.shape import ModelShape, shape_of
from diagnose.errors import ConfigError

#: A plan fits if it would even were the prediction a tenth too low.
HEADROOM = 1.1

#: The batch where the GPU's size is not known.
USUAL_BATCH = 4

#: The lengths that are advised where the one asked for does not fit.
SHORTER = (4096, 2048, 1024, 512)


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
        return Group(plan_table(self), *(Text(note) for note in self.notes))


def plan_memory(
    config: Mapping[str, Any] | Any,
    *,
    method: Method = "qlora",
    max_length: int,
    gpu_bytes: int | None,
    effective_batch: int = 16,
    lora_r: int = 16,
    lora_dropout: float = 0.0,
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
        lora_dropout: share of the adapters' inputs that is dropped; any above 0 costs the same.
        devices: GPUs, each with the whole model (DDP).
        checkpointing: whether to; None: only where it does not fit without.
        batch: examples a device and micro-batch; None: the largest power of two that fits.
        name: what to call the model.

    Raises:
        ConfigError: a number that is not positive.
        TrainingInputError: the configuration lacks a size, or is of a kind that is not planned for.
    """
    numbers = {"max_length": max_length, "effective_batch": effective_batch, "lora_r": lora_r, "devices": devices}
    numbers |= {} if batch is None else {"batch": batch}
    for what, value in numbers.items():
        if value < 1:
            raise ConfigError(f"{what} is {value}; expected 1 or more")
    asked = _Asked(
        shape_of(config, name), max_length, gpu_bytes, effective_batch, lora_r, lora_dropout, devices, checkpointing, batch
    )
    made = {each: asked.plan(each) for each in METHODS}
    notes = (*asked.shape.notes, *asked.notes(made[method], made))
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


@dataclass(frozen=True)
class _Asked:
    """What `plan_memory` was asked for, the method apart."""

    shape: ModelShape
    max_length: int
    gpu_bytes: int | None
    effective_batch: int
    lora_r: int
    lora_dropout: float
    devices: int
    checkpointing: bool | None
    batch: int | None

    def plan(self, method: Method) -> Plan:
        """The first of the candidates that fits; the last and smallest where none does."""
        plans = (self._with(method, batch, checkpointing) for batch, checkpointing in self._candidates())
        made = next(plans)
        while not made.fits and (smaller := next(plans, None)) is not None:
            made = smaller
        return made

    def notes(self, made: Plan, plans: Mapping[Method, Plan]) -> list[str]:
        """What to know of a plan, and what else would fit."""
        notes = []
        if self.gpu_bytes is None and self.batch is None:
            notes.append(f"no GPU size given: a batch of {made.per_device_batch}, and whether it fits is not checked")
        elif not made.fits and self.gpu_bytes is not None:
            need, have = gb(made.peak + ALLOWANCE), gb(self.gpu_bytes)
            notes.append(f"does not fit: {need} GB of {have} GB, with a tenth to spare; try {self._cures(made, plans)}")
        if made.effective_batch != self.effective_batch:
            factors = f"{made.per_device_batch} x {made.accumulation} x {self.devices}"
            notes.append(f"effective batch {made.effective_batch} ({factors}), not {self.effective_batch}")
        return notes

    def _candidates(self) -> Iterator[tuple[int, bool]]:
        """Batch and checkpointing in the order of the cures for out-of-memory."""
        largest = math.ceil(self.effective_batch / self.devices)
        batches = [2**i for i in range(largest.bit_length() - 1, -1, -1)]
        if self.batch is not None:
            batches = [self.batch]
        elif self.gpu_bytes is None:
            batches = [min(USUAL_BATCH, batches[0])]
        for checkpointing in (False, True) if self.checkpointing is None else (self.checkpointing,):
            for batch in batches:
                yield batch, checkpointing

    def _with(self, method: Method, batch: int, checkpointing: bool, max_length: int | None = None) -> Plan:
        length = max_length or self.max_length
        accumulation = math.ceil(self.effective_batch / self.devices / batch)
        parts = predict(
            self.shape,
            method=method,
            batch=batch,
            length=length,
            checkpointing=checkpointing,
            lora_r=self.lora_r,
            has_dropout=self.lora_dropout > 0,
            accumulated=accumulation > 1,
            is_distributed=self.devices > 1,
        )
        return Plan(
            shape=self.shape,
            method=method,
            per_device_batch=batch,
            accumulation=accumulation,
            devices=self.devices,
            checkpointing=checkpointing,
            max_length=length,
            lora_r=self.lora_r,
            parts=parts,
            gpu_bytes=self.gpu_bytes,
            fits=self.gpu_bytes is None or parts.total * HEADROOM + ALLOWANCE <= self.gpu_bytes,
        )

    def _cures(self, made: Plan, plans: Mapping[Method, Plan]) -> str:
        cures = []
        if self._with(made.method, 1, checkpointing=True).fits:
            cures.append("a smaller batch with checkpointing")
        shorter = (length for length in SHORTER if length < self.max_length)
        fitting = next(
            (length for length in shorter if self._with(made.method, 1, checkpointing=True, max_length=length).fits), None
        )
        cures += [] if fitting is None or cures else [f"--max-length {fitting}"]
        cures += [f"--method {each}" for each in ("lora", "qlora") if plans[each].fits and each != made.method][:1]
        return " or ".join(cures) or "a smaller model or a larger GPU"
