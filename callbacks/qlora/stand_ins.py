"""What stands for layers that need a GPU in `fake_step.py`: they make tensors of the same sizes and compute nothing.

Written after the sources of bitsandbytes 0.50 (4-bit layers, 8-bit Adam), PEFT 0.21, TRL 1.16 (the fused head) and PyTorch
2.13 (attention, dropout, autocast's float32 layers).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.pytorch_utils import Conv1D

from diagnose.callbacks.qlora.memory import BLOCK, HEAD_TOKENS, HEAD_WIDTH, NESTED_BLOCK

#: The name that the stand-in for the attention kernels is known by to transformers, which makes no mask for it.
ATTENTION = "curve_doctor_counted"

#: Parameters in a tensor from which on its optimizer state has 8 bits (min_8bit_size of bitsandbytes' optimizers).
_LEAST_8BIT = 4096


class _Multiply4Bit(torch.autograd.Function):  # type: ignore[misc]  # torch is Any where it is skipped
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


def quantize(model: nn.Module) -> None:
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


AttentionInterface.register(ATTENTION, _attend)


class FusedHead(torch.autograd.Function):  # type: ignore[misc]  # likewise
    """The tensors of TRL's fused head and loss (trl 1.16, kernels/chunked_logprob.py), on Triton devices."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        tile = flat.new_empty(min(len(flat), HEAD_TOKENS), HEAD_WIDTH, dtype=torch.bfloat16)
        statistics = flat.new_empty(7, len(flat), dtype=torch.float32)
        ctx.save_for_backward(hidden, weight)
        del tile
        return statistics.sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden, weight = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden, dtype=torch.float32)
        grad_weight = torch.empty_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        n_tokens = hidden.shape[0] * hidden.shape[1]
        tile = hidden.new_empty(min(n_tokens, HEAD_TOKENS), HEAD_WIDTH, dtype=torch.bfloat16)
        out = grad_hidden.to(hidden.dtype), None if grad_weight is None else grad_weight.to(weight.dtype)
        del tile
        return out


def adam_8bit(model: nn.Module) -> Iterator[torch.Tensor]:
    """The state of bitsandbytes' 8-bit Adam: small tensors keep 32 bits, and so does the Trainer keep embeddings."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for parameter in model.parameters():
        for _ in range(2 if parameter.requires_grad else 0):
            if parameter.numel() < _LEAST_8BIT or id(parameter) in embeddings:
                yield parameter.new_empty(parameter.numel(), dtype=torch.float32)
            else:
                yield parameter.new_empty(parameter.numel(), dtype=torch.uint8)
                yield parameter.new_empty(-(-parameter.numel() // 256), dtype=torch.float32)


class _Dropped(torch.autograd.Function):  # type: ignore[misc]  # likewise
    """The tensors of CUDA's dropout, which keeps a byte for each number; the CPU's keeps the numbers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(grads[0])


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Two layers as they are on CUDA: dropout, and layer_norm, which autocast runs in float32 there and answers in it."""
    norm, dropout = nn.LayerNorm.forward, nn.Dropout.forward

    def normed(self: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        weight = None if self.weight is None else self.weight.float()
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)

    nn.LayerNorm.forward = normed
    nn.Dropout.forward = lambda self, x: _Dropped.apply(x) if self.p > 0 else x
    try:
        yield
    finally:
        nn.LayerNorm.forward, nn.Dropout.forward = norm, dropout
