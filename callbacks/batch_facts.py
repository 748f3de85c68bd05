"""What no curve shows of the data: a few examples as the collator makes them, looked at once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from diagnose.model import Setting

#: Examples that are looked at, spread over the data: as many as a batch holds, within these bounds.
FEWEST, MOST = 4, 16
#: The label that a loss leaves out.
IGNORED = -100


def batch_facts(dataloader: Any, processing_class: Any = None) -> dict[str, Setting]:
    """Facts about the labels and the padding of a few examples spread over the data.

    The data set and the collator are asked directly, so that the dataloader's own order, its workers and the random numbers of
    the training stay as they are.

    Args:
        dataloader: of training or evaluation.
        processing_class: the tokenizer, or a processor that has one.

    Returns:
        `masked_labels` (share of all labels that are -100), `examples_without_labels` (share), `pad_is_eos`,
        `end_token_in_labels`, `attended_padding` (share of the padding); what cannot be told is left out. Nothing for streamed
        data, and for collators that make no labels.
    """
    dataset, collate = getattr(dataloader, "dataset", None), getattr(dataloader, "collate_fn", None)
    if dataset is None or collate is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return {}
    n = len(dataset)
    sampler = getattr(dataloader, "batch_sampler", None)  # which alone knows the batch once accelerate has wrapped it
    size = getattr(dataloader, "batch_size", None) or getattr(sampler, "batch_size", None) or FEWEST
    some = min(n, MOST, max(FEWEST, size))
    at = sorted({round(i * (n - 1) / max(1, some - 1)) for i in range(some)})
    with _same_random_numbers():
        batch = collate([dataset[i] for i in at]) if at else None
    labels, inputs = (batch.get(name) if isinstance(batch, Mapping) else None for name in ("labels", "input_ids"))
    if not isinstance(labels, torch.Tensor) or labels.ndim != 2 or labels.is_floating_point():  # noqa: PLR2004 - rows of tokens
        return {}
    assert batch is not None  # it had labels
    kept = labels != IGNORED
    rows = _examples(kept, batch.get("position_ids"))
    facts: dict[str, Setting] = {
        "masked_labels": float((~kept).float().mean()),
        "examples_without_labels": sum(not bool(row.any()) for row in rows) / max(1, len(rows)),
    }
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    pad, eos = getattr(tokenizer, "pad_token_id", None), getattr(tokenizer, "eos_token_id", None)
    if isinstance(pad, int) and isinstance(eos, int) and isinstance(inputs, torch.Tensor) and inputs.shape == labels.shape:
        facts["pad_is_eos"] = pad == eos
        facts["end_token_in_labels"] = bool((labels == eos).any())
        attended = _attended(inputs, pad, pad == eos, batch)
        if attended is not None:
            facts["attended_padding"] = attended
    return facts


def _examples(kept: torch.Tensor, positions: Any) -> list[torch.Tensor]:
    """A row an example; one long row of several is cut where the positions begin again."""
    if kept.shape[0] != 1 or not isinstance(positions, torch.Tensor) or positions.shape != kept.shape:
        return list(kept)
    starts = torch.nonzero(positions[0] == 0).flatten().tolist()
    ends = [*starts[1:], kept.shape[1]]
    return [kept[0, a:b] for a, b in zip(starts, ends, strict=True)]


def _attended(inputs: torch.Tensor, pad: int, is_eos: bool, batch: Mapping[str, Any]) -> float | None:
    """The share of the padding on which the attention mask is 1; None without padding, or where rows were joined to one."""
    if isinstance(batch.get("position_ids"), torch.Tensor):
        return None
    is_pad = inputs == pad
    real = (~is_pad).int()
    left, right = real.cumsum(1) == 0, real.flip(1).cumsum(1).flip(1) == 0
    if is_eos:
        # The first of them ends the text.
        right = right & torch.nn.functional.pad(right, (1, 0))[:, :-1]
    padding = left | right
    mask = batch.get("attention_mask")
    if not bool(padding.any()) or (mask is not None and getattr(mask, "shape", None) != inputs.shape):
        return None
    return 1.0 if mask is None else float(mask[padding].float().mean())


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Leave the random numbers of the training as they are: collators and transforms may draw some."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - the state that others use
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002 - likewise
        torch.set_rng_state(states[2])
