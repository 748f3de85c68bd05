"""Which rows of the training data an optimizer step was made of, where their order can be told again."""

from __future__ import annotations

import copy
import math
from itertools import islice
from typing import Any

#: Rows that are worth naming.
MOST = 64


def rows_of_step(dataloader: Any, epoch: float, micro_batches: int) -> list[int] | None:
    """Indices into the training data set of the rows of the step that comes next.

    accelerate's `SeedableRandomSampler`, which a Trainer uses by default, gives the same order for the same epoch, so a copy of
    it tells the rows without touching the training's own.

    Args:
        dataloader: the training's.
        epoch: as the Trainer's state tells it before the step: whole epochs and the part of the batches seen.
        micro_batches: that make one step.

    Returns:
        None for no dataloader, streamed data, several processes, and samplers whose order cannot be told again.

    Raises:
        TypeError, AttributeError: a dataloader that is none.
    """
    batches = getattr(dataloader, "batch_sampler", None)
    sampler: Any = getattr(batches, "sampler", None)
    size = getattr(batches, "batch_size", None)
    if not size or getattr(batches, "num_processes", 1) > 1:
        return None
    if type(sampler).__name__ == "SeedableRandomSampler":
        sampler = copy.copy(sampler)
        sampler.generator = None  # else the copy would draw from the training's own
        sampler.set_epoch(math.floor(epoch + 1e-9))
    elif type(sampler).__name__ != "SequentialSampler":
        return None
    first = round((epoch - math.floor(epoch + 1e-9)) * len(dataloader))
    last = min(first + micro_batches, len(dataloader))
    return [int(i) for i in islice(iter(sampler), first * size, last * size)][:MOST]
