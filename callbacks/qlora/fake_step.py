"""One training step on tensors without content, counted: the check of the formula in `memory.py`.

The model is built from its configuration alone, with PEFT's adapters. What needs a GPU has a stand-in that makes tensors of
the same sizes: bitsandbytes' 4-bit layers, TRL's fused head, the attention kernels. Shapes flow through forward, backward and
optimizer, and the bytes of all live storages are added up. A 7B model takes about twenty seconds and no memory.

Not covered: the CUDA context, cuBLAS workspaces and fragmentation, which `memory.ALLOWANCE` stands for; fused kernels
from outside (Liger, FlashAttention's own package); more than one device.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AutoConfig, AutoModelForCausalLM

from diagnose.callbacks.qlora.memory import Method
from diagnose.callbacks.qlora.stand_ins import ATTENTION, FusedHead, adam_8bit, as_on_cuda, quantize

#: PyTorch's allocator gives memory in multiples of this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize), in bytes.
_ROUND = 512


@dataclass(frozen=True)
class Count:
    """What a step needs, in bytes.

    Attributes:
        peak: the most that was live at once.
        before: what is live before it: weights, adapters and optimizer state.
        peak_at: the operation that reached the peak.
        n_trained: the parameters that are trained.
    """

    peak: int
    before: int
    peak_at: str
    n_trained: int


def count_step(
    config: Mapping[str, Any],
    *,
    method: Method,
    batch: int,
    length: int,
    checkpointing: bool,
    lora_r: int = 16,
    lora_dropout: float = 0.0,
    accumulated: bool = True,
    is_fake: bool = True,
) -> Count:
    """Count a micro-batch of a training in steady state: the optimizer has its state.

    Args:
        config: a model's config.json.
        method: what is trained: adapters on a 4-bit base, adapters on a bf16 base, or all in bf16.
        batch: examples a device and micro-batch.
        length: tokens an example.
        checkpointing: recompute the layers in the backward pass.
        lora_r: rank of the adapters, on all linear layers.
        lora_dropout: share of the adapters' inputs that is dropped.
        accumulated: the gradients of an earlier micro-batch are there.
        is_fake: False runs it on real tensors of the CPU, to check the faking itself with a small model.
    """
    made = AutoConfig.for_model(**{"use_cache": False, **config})
    with torch.device("meta" if is_fake else "cpu"):
        model = AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16, attn_implementation=ATTENTION)
        if method == "qlora":
            quantize(model)
        if method != "full":
            lora = LoraConfig(
                r=lora_r,
                lora_alpha=2 * lora_r,
                lora_dropout=lora_dropout,
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            )
            model = get_peft_model(model, lora)
    for parameter in model.parameters():
        if parameter.requires_grad and method == "qlora":  # as TRL does for a 4-bit base; PEFT makes them float32
            parameter.data = parameter.data.to(torch.bfloat16)
    mode = FakeTensorMode() if is_fake else contextlib.nullcontext()
    with mode, as_on_cuda(), torch.device("cpu"):
        if is_fake:
            _fake_parameters(model)
        return _run(model, batch, length, checkpointing=checkpointing, accumulated=accumulated)


def _run(model: Any, batch: int, length: int, *, checkpointing: bool, accumulated: bool) -> Count:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if checkpointing:
        # transformers 5.24 renamed it
        name = "activation_checkpointing_enable"
        getattr(base, name if hasattr(base, name) else "gradient_checkpointing_enable")()
        model.enable_input_require_grads()
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ids = torch.zeros((batch, length), dtype=torch.long)
    # Where examples differ in length there is padding, and attention then takes a mask; one example needs none.
    mask = torch.ones((batch, 1, length, length), dtype=torch.bool) if batch > 1 else None
    gc.collect()
    counter = LiveBytes()
    for tensor in (*model.parameters(), *model.buffers(), ids, *([] if mask is None else [mask])):
        counter.add(tensor, "model")
    with counter:
        state = list(adam_8bit(model))
        before = counter.peak = counter.now
        if accumulated:
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = base.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            loss = FusedHead.apply(hidden[:, :-1].clone(), base.get_output_embeddings().weight)
        del hidden
        loss.backward()
    del state
    return Count(counter.peak, before, counter.peak_at, sum(parameter.numel() for parameter in trained))


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]  # torch is Any where it is skipped
    """Counts the bytes of all live storages, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.peak_at = ""
        self._storages: dict[int, weakref.ref[Any]] = {}

    def add(self, tensor: torch.Tensor, operation: str) -> None:
        """Count a tensor's storage until it dies; a storage that is known already is counted once."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._storages:
            return
        n_bytes = -(-storage.nbytes() // _ROUND) * _ROUND

        def gone(_: object) -> None:
            self._storages.pop(key, None)
            self.now -= n_bytes

        self._storages[key] = weakref.ref(storage, gone)
        self.now += n_bytes
        if self.now > self.peak:
            self.peak, self.peak_at = self.now, operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, lambda tensor: self.add(tensor, str(func)), out)
        return out


def _fake_parameters(model: nn.Module) -> None:
    """Replace all parameters and buffers by fake ones: `Module.to` cannot do it. Tied parameters stay tied."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                fake = torch.empty(parameter.shape, dtype=parameter.dtype)
                new = made.setdefault(id(parameter), nn.Parameter(fake, requires_grad=parameter.requires_grad))
                module._parameters[name] = new
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
