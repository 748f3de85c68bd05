"""What a training step needs of the GPU's memory: weights, gradients, optimizer, activations, head.

Two counts. `course_bytes` is the one that courses teach, before activations. `predict` is the one to plan with: the tensors
that transformers, PEFT, bitsandbytes and TRL's fused head make, at the moment of the step when most are live. It is checked
against `fake_step.py` over models of different shape (tests/benchmarks/memory_plan.py); it has not been measured on CUDA.

Not covered: `ALLOWANCE` stands for what is outside the tensors; Liger kernels, attention without sdpa or
FlashAttention, sharded models, evaluation batches larger than the training's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from diagnose.callbacks.qlora.shape import ModelShape

Method = Literal["qlora", "lora", "full"]
METHODS: tuple[Method, ...] = get_args(Method)

#: bitsandbytes: one 8-bit scale for 64 weights of 4 bits, and with double quantization one 32-bit scale for 256 of those.
BLOCK, NESTED_BLOCK = 64, 256

#: The tile of TRL's fused head, in tokens and words (trl 1.16, kernels/chunked_logprob.py and trainer/utils.py).
HEAD_TOKENS, HEAD_WIDTH = 4096, 32768

#: What the GPU holds beside the tensors, in bytes: the CUDA context (0.29 GB with kernels loaded as they are needed, 0.67 GB
#: with all of them: pytorch/pytorch#86509), cuBLAS's workspaces, and what the allocator keeps in pieces. Not measured here: no
#: GPU was at hand.
ALLOWANCE = 1_000_000_000

#: Bytes a parameter of 8-bit Adam: two states, each with a 32-bit scale for 256 of its numbers.
_ADAM_8BIT = 2 * (1 + 4 / 256)

_GIVEN = {"full": (2.0, 2.0, 8.0), "lora": (2.0, 2.0, 8.0), "qlora": (0.5, 2.0, 8.0)}


def course_bytes(n_params: float, n_trained: float, method: Method) -> dict[str, float]:
    """Weights, gradients and Adam's state as courses count them, before activations.

    Two bytes a weight in bf16, half a byte in 4 bits; for each trained parameter two bytes of gradient and two fp32 numbers of
    Adam. Adapters count with their gradient and state only, as in the courses' own example.

    Args:
        n_params: parameters of the model.
        n_trained: parameters of the adapters; all of `n_params` with the method full.
        method: what is trained.

    Returns:
        Bytes of the weights, gradients and optimizer.

    >>> {method: sum(course_bytes(7e9, 40e6, method).values()) / 1e9 for method in METHODS}
    {'qlora': 3.9, 'lora': 14.4, 'full': 84.0}
    """
    weight, gradient, state = _GIVEN[method]
    n = n_params if method == "full" else n_trained
    return {"weights": n_params * weight, "gradients": n * gradient, "optimizer": n * state}


@dataclass(frozen=True)
class Bytes:
    """What is live at the peak of a training step, in bytes by part."""

    weights: int
    adapters: int
    gradients: int
    optimizer: int
    activations: int
    head: int

    @property
    def total(self) -> int:
        """All of it, without `ALLOWANCE`: what `torch.cuda.max_memory_allocated` would say."""
        return self.weights + self.adapters + self.gradients + self.optimizer + self.activations + self.head


def predict(
    shape: ModelShape,
    *,
    method: Method,
    batch: int,
    length: int,
    checkpointing: bool,
    lora_r: int = 16,
    has_dropout: bool = False,
    accumulated: bool = True,
    is_distributed: bool = False,
) -> Bytes:
    """Predict the peak of a training step in steady state, with 8-bit Adam.

    Args:
        shape: of the model.
        method: what is trained.
        batch: examples a device and micro-batch.
        length: tokens an example.
        checkpointing: the layers are computed again in the backward pass.
        lora_r: rank of the adapters, on all linear layers.
        has_dropout: whether the adapters drop a part of their input.
        accumulated: gradients of earlier micro-batches are there as well.
        is_distributed: several processes, each with the whole model: DDP holds the gradients a second time, in its buckets.
    """
    tokens = batch * length
    n_trained = shape.n_params if method == "full" else shape.n_lora(lora_r)
    weights = 2 * shape.n_params if method != "qlora" else 2 * shape.n_rest + _packed(shape.n_linear)
    adapters = {"qlora": 2, "lora": 4, "full": 0}[method] * n_trained
    optimizer = round(n_trained * _ADAM_8BIT)
    if method == "full":  # the Trainer keeps 32-bit states for embeddings
        optimizer += round((shape.vocab + shape.n_positions) * shape.hidden * (8 - _ADAM_8BIT))
    gradients = n_trained * (4 if method == "lora" else 2)
    buckets = gradients if is_distributed else 0

    layer = tokens * _saved_a_token(shape, method, batch, length, lora_r, has_dropout=has_dropout)
    stream = tokens * shape.hidden * _stream(shape, method)
    kept = shape.n_layers * (stream if checkpointing else layer)
    in_layer = _beyond_saved(shape, method, tokens, has_dropout=has_dropout) + (layer if checkpointing else 0)
    # What the last norm and the head hold of the hidden state: a float32 copy before, one or two after, one as gradient.
    head = tokens * ((16 if shape.has_layer_norm else 12) * shape.hidden + 28) + min(tokens, HEAD_TOKENS) * HEAD_WIDTH * 2
    if method == "full":
        head += shape.vocab * shape.hidden * 6  # its gradient, summed in float32 and then made bf16
    activations = kept + max(in_layer - head, 0)
    if accumulated:
        return Bytes(weights, adapters, gradients + buckets, optimizer, activations, head)
    # Gradients take the place of activations, layer by layer: the peak is at one end of the backward pass or at the other.
    twice = 2 * 2 * shape.vocab * shape.hidden if method == "full" and shape.is_tied else 0  # embedding and head, and their sum
    if gradients + twice > activations + head:
        return Bytes(weights, adapters, gradients + buckets, optimizer, 0, twice)
    return Bytes(weights, adapters, buckets, optimizer, activations, head)


def _packed(n: int) -> int:
    """Bytes of n weights in 4 bits with double quantization: about 4.127 bits each."""
    return n // 2 + n // BLOCK + 4 * n // (BLOCK * NESTED_BLOCK)


def _saved_a_token(shape: ModelShape, method: Method, batch: int, length: int, lora_r: int, *, has_dropout: bool) -> int:
    """What a layer keeps for its backward pass, in bytes a token, tensor by tensor in the order of the forward pass."""
    h, q, kv, mlp = shape.hidden, shape.q, shape.kv, shape.mlp
    is_padded = batch > 1  # examples of different lengths: attention takes a mask, and keys and values are repeated
    n_inputs = len(shape.linears) - 2  # the linear layers that read a norm's output: all but o_proj and down_proj
    # An input is kept for the gradient of what multiplies it. It is shared by the layers that read it, unless each casts it
    # for itself: from LayerNorm's float32, or because PEFT's float32 adapters make it float32 and autocast makes it bf16 again.
    copies = n_inputs if shape.has_layer_norm or method == "lora" else 2
    norms = shape.n_norms * 4 * h + copies * 2 * h  # the float32 copy of a norm's input, and its output
    if method == "full" and not shape.has_layer_norm:
        norms += shape.n_norms * 2 * h  # the normed input, for the gradient of the norm's weight
    if shape.has_qk_norm:
        norms += 4 * (q + kv)
    attention = 2 * q + 2 * 2 * (q if is_padded else kv) + 2 * q + 4 * shape.n_heads + (2 * length if is_padded else 0)
    attention += 2 * q if method == "lora" else 0
    inside = _stream(shape, method)
    gated = inside * 3 * mlp if shape.is_gated else inside * shape.n_activation_copies * mlp
    adapters = 0 if method == "full" else 2 * lora_r * len(shape.linears)
    if has_dropout and method != "full":
        # Each adapter has an input of its own, and a byte for each number that says whether it was dropped.
        dropped = 3 * sum(n_in for n_in, _ in shape.linears)
        return norms - copies * 2 * h + attention - (2 * q if method == "lora" else 0) + gated + dropped + adapters
    return norms + attention + gated + 2 * mlp + adapters


def _stream(shape: ModelShape, method: Method) -> int:
    """Bytes of a number of the residual stream: a 4-bit layer answers in the type of its input, LayerNorm's float32."""
    return 4 if shape.has_layer_norm and method == "qlora" else 2


def _beyond_saved(shape: ModelShape, method: Method, tokens: int, *, has_dropout: bool) -> int:
    """What is live in a layer's busiest moment beside what it keeps for the backward pass, in bytes.

    All in the last linear layer of the MLP, whose input is the widest tensor. Found by looking at what is live at the peak of
    the fake step.
    """
    number = _stream(shape, method)
    width, stream = number * tokens * shape.mlp, number * tokens * shape.hidden
    if method == "lora":  # forward: the input in bf16, in float32 for the adapter (and dropped), in bf16 again for autocast
        return (10 if has_dropout else 6) * tokens * shape.mlp + 5 * stream
    n_weights = shape.mlp * shape.hidden
    weight = n_weights * 2 + n_weights * 4 // BLOCK if method == "qlora" else 0  # the 4-bit weight as a whole in bf16
    forward = weight + 4 * stream
    product = weight + 2 * width - 2 * tokens * shape.mlp + stream  # backward: base's and adapter's gradient of the input
    total = 3 * width - 2 * tokens * shape.mlp + stream  # backward: both, and their sum
    return max(forward, product, total)
