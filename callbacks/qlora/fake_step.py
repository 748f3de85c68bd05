"""One training step on tensors without content, counted: the check of the formula in `memory.py`.

The model is built from its configuration alone, with PEFT's adapters. What needs a GPU has a stand-in that makes tensors of
the same sizes: bitsandbytes' 4-bit layers, TRL's fused head, the attention kernels. Shapes flow through forward, backward and
optimizer, and the bytes of all live storages are added up. A 7B model takes about twenty seconds and no memory.

Not covered: the CUDA context, cuBLAS workspaces and fragmentation, which `memory.ALLOWANCE` stands for; fused kernels
from outside (Liger, FlashAttention's own package); dropout in the adapters; more than one device.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from diagnose.callbacks.qlora.memory import (
    BLOCK,
    HEAD_TOKENS,
    HEAD_WIDTH,
    NESTED_BLOCK,
    Method,
)

#: PyTorch's allocator gives memory in multiples of this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize), in bytes.
_ROUND = 512

#: The name that the stand-in for the attention kernels is known by to transformers, which makes no mask for it.
_ATTENTION = "curve_doctor_counted"


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
        accumulated: the gradients of an earlier micro-batch are there.
        is_fake: False runs it on real tensors of the CPU, to check the faking itself with a small model.
    """
    made = AutoConfig.for_model(**{"use_cache": False, **config})
    with torch.device("meta" if is_fake else "cpu"):
        model = AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16, attn_implementation=_ATTENTION)
        if method == "qlora":
            _quantize(model)
        if method != "full":
            lora = LoraConfig(r=lora_r, lora_alpha=2 * lora_r, target_modules="all-linear", task_type="CAUSAL_LM")
            model = get_peft_model(model, lora)
    for parameter in model.parameters():
        if parameter.requires_grad and method == "qlora":  # as TRL does for a 4-bit base; PEFT makes them float32
            parameter.data = parameter.data.to(torch.bfloat16)
    mode = FakeTensorMode() if is_fake else contextlib.nullcontext()
    with mode, _layer_norm_in_float32(), torch.device("cpu"):
        if is_fake:
            _fake_parameters(model)
        return _run(model, batch, length, checkpointing=checkpointing, accumulated=accumulated)


def _run(model: Any, batch: int, length: int, *, checkpointing: bool, accumulated: bool) -> Count:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if checkpointing:
        model.gradient_checkpointing_enable()
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
        state = [buffer for parameter in trained for buffer in _adam_8bit(parameter)]
        before = counter.peak = counter.now
        if accumulated:
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = base.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            loss = _FusedHead.apply(hidden[:, :-1].clone(), base.get_output_embeddings().weight)
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


class _Multiply4Bit(torch.autograd.Function):  # type: ignore[misc]  # likewise
    """x @ W.T with W in 4 bits, as bitsandbytes 0.50 does it for more than 1,536 rows: W as a whole in bf16, each time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, packed: torch.Tensor, n_out: int, n_in: int) -> torch.Tensor:
        ctx.shape = (n_out, n_in)
        ctx.save_for_backward(packed)
        return x @ _dequantized(x, n_out, n_in).t()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (grad,) = grads
        return grad @ _dequantized(grad, *ctx.shape), None, None, None


def _dequantized(like: torch.Tensor, n_out: int, n_in: int) -> torch.Tensor:
    scales = like.new_empty(n_out * n_in // BLOCK, dtype=torch.float32)  # live while the weight is written
    weight = like.new_empty(n_out, n_in)
    del scales
    return weight


class _Linear4Bit(nn.Linear):  # type: ignore[misc]  # likewise
    """What stands for bitsandbytes' Linear4bit: a Linear to PEFT, with packed weights and their scales of the same sizes."""

    def __init__(self, n_in: int, n_out: int, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = n_in, n_out
        n = n_in * n_out
        self.weight = nn.Parameter(torch.empty((n + 1) // 2, 1, dtype=torch.uint8), requires_grad=False)
        self.register_buffer("scales", torch.empty(-(-n // BLOCK), dtype=torch.uint8))
        self.register_buffer("scales_of_scales", torch.empty(-(-n // (BLOCK * NESTED_BLOCK)), dtype=torch.float32))
        self.register_buffer("code", torch.empty(256 + 16 + 1, dtype=torch.float32))
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = _Multiply4Bit.apply(x.to(torch.bfloat16), self.weight, self.out_features, self.in_features)
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).clone()  # the first as bitsandbytes does, the second as PEFT does around its layer


def _quantize(model: nn.Module) -> None:
    """Put 4-bit layers in the place of all linear ones but the head, as transformers does."""
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child is head or not isinstance(child, nn.Linear | Conv1D):
                continue
            n_out, n_in = child.weight.shape if isinstance(child, nn.Linear) else tuple(child.weight.shape)[::-1]
            setattr(module, name, _Linear4Bit(n_in, n_out, child.bias))


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # likewise
    """The tensors of PyTorch's FlashAttention and memory-efficient kernels: no (length, length) matrix but a mask's."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        batch, heads, length, dim = q.shape
        out = q.new_empty(batch, length, heads, dim).transpose(1, 2)
        log_sum = q.new_empty(batch, heads, length, dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, log_sum, *([] if mask is None else [mask]))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        q, k, v = ctx.saved_tensors[:3]
        sums = q.new_empty(q.shape, dtype=torch.float32)  # dq is summed up in float32
        out = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None
        del sums
        return out


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **_: Any
) -> tuple[torch.Tensor, None]:
    """Attention as transformers runs it by PyTorch's sdpa: with a mask, keys and values are repeated for each query head."""
    query, key, value = (tensor.to(torch.bfloat16) for tensor in (query, key, value))  # autocast's doing
    if attention_mask is not None:
        repeated = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(repeated, dim=1) if repeated > 1 else tensor for tensor in (key, value))
        attention_mask = attention_mask.to(torch.bfloat16)  # a boolean mask becomes one that is added
    return _Attention.apply(query, key, value, attention_mask).transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, _attend)


class _FusedHead(torch.autograd.Function):  # type: ignore[misc]  # likewise
    """The tensors of TRL's fused head and loss (trl 1.16, kernels/chunked_logprob.py), on Triton devices."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        tile = flat.new_empty(min(len(flat), HEAD_TOKENS), HEAD_WIDTH)
        statistics = flat.new_empty(7, len(flat), dtype=torch.float32)
        ctx.save_for_backward(hidden, weight)
        del tile
        return statistics.sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden, weight = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden, dtype=torch.float32)
        grad_weight = torch.empty_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        tile = hidden.new_empty(min(hidden.shape[0] * hidden.shape[1], HEAD_TOKENS), HEAD_WIDTH)
        out = grad_hidden.to(hidden.dtype), None if grad_weight is None else grad_weight.to(weight.dtype)
        del tile
        return out


def _adam_8bit(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    """The optimizer state of one parameter in bitsandbytes' 8-bit Adam: small tensors keep 32 bits."""
    n = parameter.numel()
    for _ in range(2):
        if n < 4096:  # noqa: PLR2004 - min_8bit_size of bitsandbytes' optimizers
            yield parameter.new_empty(n, dtype=torch.float32)
        else:
            yield parameter.new_empty(n, dtype=torch.uint8)
            yield parameter.new_empty(-(-n // 256), dtype=torch.float32)


@contextlib.contextmanager
def _layer_norm_in_float32() -> Iterator[None]:
    """CUDA's autocast runs layer_norm in float32 and returns that; the CPU's does not."""
    real = nn.LayerNorm.forward

    def forward(self: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        weight = None if self.weight is None else self.weight.float()
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)

    nn.LayerNorm.forward = forward
    try:
        yield
    finally:
        nn.LayerNorm.forward = real


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
