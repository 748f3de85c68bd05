"""What to try next when a training ran out of memory in spite of the plan: a pure decision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSettings:
    """What decides the memory of a step, beside the model and the length.

    Attributes:
        per_device_batch: examples a device and micro-batch.
        accumulation: micro-batches a step.
        checkpointing: the layers are computed again in the backward pass.
    """

    per_device_batch: int
    accumulation: int
    checkpointing: bool


def next_settings(current: BatchSettings) -> BatchSettings | None:
    """The next smaller settings of the same effective batch, and so of the same gradient.

    The batch is halved and the accumulation doubled, down to a batch of one; then the layers are checkpointed, which is about
    30 % slower and needs far less memory.

    Returns:
        None where only a shorter sequence is left, which is for the user to decide: see `advice`.

    >>> next_settings(BatchSettings(4, 4, False))
    BatchSettings(per_device_batch=2, accumulation=8, checkpointing=False)
    >>> next_settings(BatchSettings(1, 16, False))
    BatchSettings(per_device_batch=1, accumulation=16, checkpointing=True)
    >>> next_settings(BatchSettings(1, 16, True)) is None
    True
    """
    batch = current.per_device_batch
    if batch > 1:
        smaller = batch // 2 if batch % 2 == 0 else 1
        return BatchSettings(smaller, current.accumulation * (batch // smaller), current.checkpointing)
    if not current.checkpointing:
        return BatchSettings(batch, current.accumulation, checkpointing=True)
    return None


def advice(max_length: int) -> str:
    """What to tell the user when `next_settings` has nothing left.

    >>> advice(2048)
    'out of memory with a batch of 1 and gradient checkpointing: train with --max-length 1024, a smaller model, or a larger GPU'
    """
    return (
        "out of memory with a batch of 1 and gradient checkpointing: "
        f"train with --max-length {max_length // 2}, a smaller model, or a larger GPU"
    )
