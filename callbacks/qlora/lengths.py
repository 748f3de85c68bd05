"""How long the examples are, in the tokens of the model, and the length to train with.

The longest example sets what a batch costs, and attention's memory grows with its square. So the length covers most of the
examples, not all, and the rest is cut.
"""

from __future__ import annotations

import importlib.util
import random
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.callbacks.qlora.data import TrainingData
from diagnose.callbacks.qlora.encode import ChatTemplateError, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: The lengths that are chosen from, in tokens.
CHOICES = (512, 1024, 2048, 4096, 8192)

#: The share of the examples that the length covers.
COVERED = 0.95

#: From this length on attention without FlashAttention's kernels costs more than the rest of the model.
LONG = 4096

#: So many examples are measured; 5,000 place the 95th percentile to within 0.6 % of the examples.
SAMPLE = 5000

_PERCENTILES = (5, 25, 50, 75, 90, 95, 99, 100)
_BAR = 30


@dataclass(frozen=True)
class Lengths:
    """The lengths of the examples.

    Attributes:
        tokens: (n,) int64, the length of each sequence that was measured, in order of length.
        n_examples: how many training examples there are; more than were measured where it is a sample.
        n_measured: how many were measured.
        max_length: the smallest of `CHOICES` that covers 95 % of them, or the largest.
        notes: what to know, a sentence each.
    """

    tokens: np.ndarray[tuple[int], np.dtype[np.int64]]
    n_examples: int
    n_measured: int
    max_length: int
    notes: tuple[str, ...]

    def percentile(self, percent: float) -> int:
        """The length that this percentage of the sequences does not exceed, in tokens."""
        return int(np.percentile(self.tokens, percent, method="inverted_cdf"))

    def share_cut(self, max_length: int | None = None) -> float:
        """The share of the sequences that are longer; than `max_length` of this object if None."""
        return float((self.tokens > (max_length or self.max_length)).mean())

    def __rich__(self) -> RenderableType:
        percentiles = Table(title="Length of the examples, in tokens", title_justify="left")
        for percent in _PERCENTILES:
            percentiles.add_column("longest" if percent == _PERCENTILES[-1] else f"{percent} %", justify="right")
        percentiles.add_row(*(f"{self.percentile(percent):,}" for percent in _PERCENTILES))
        return Group(percentiles, self._histogram(), *(Text(note) for note in self.notes))

    def _histogram(self) -> Table:
        drawn = Table(box=None, show_header=False, padding=(0, 1))
        edges = [0, *(choice for choice in (128, 256, *CHOICES) if choice < 2 * self.tokens.max()), int(self.tokens.max())]
        edges = sorted({min(edge, int(self.tokens.max())) for edge in edges})
        counts = [int(((self.tokens > low) & (self.tokens <= high)).sum()) for low, high in pairwise(edges)]
        for high, count in zip(edges[1:], counts, strict=True):
            mark = "max_length" if high == self.max_length else ""
            drawn.add_row(f"to {high:,}", "█" * round(_BAR * count / max(counts)), f"{count / len(self.tokens):.1%}", mark)
        return drawn


def measure_lengths(data: TrainingData, tokenizer: PreTrainedTokenizerBase, *, sample: int = SAMPLE, seed: int = 42) -> Lengths:
    """Measure the training examples with the model's own tokenizer and chat template.

    Args:
        data: what `load_data` gave.
        tokenizer: of the model.
        sample: where there are more examples, so many are drawn and measured.
        seed: of that draw.

    Raises:
        TrainingInputError: the tokenizer has no chat template where one is needed, or one that refuses every example.
    """
    n = len(data.train)
    indexes = sorted(random.Random(seed).sample(range(n), sample)) if n > sample else range(n)
    examples = (data.train[i] for i in indexes)
    tokens = np.sort([length for example in examples for length in _lengths(example, tokenizer)])
    if not len(tokens):
        encode(data.train[0], tokenizer)  # tells why
    max_length = choose_length(tokens)
    return Lengths(tokens, n, len(indexes), max_length, _notes(tokens, n, len(indexes), max_length))


def _lengths(example: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The lengths of an example's sequences; none where the chat template refuses it, which `tokenize_data` tells."""
    try:
        return [len(sequence.input_ids) for sequence in encode(example, tokenizer)]
    except ChatTemplateError:
        return []


def choose_length(tokens: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    """The smallest of `CHOICES` that covers 95 % of the lengths; the largest where none does.

    >>> choose_length(np.array([100] * 95 + [9000] * 5))
    512
    >>> choose_length(np.array([100] * 94 + [3000] * 6))
    4096
    """
    return next((choice for choice in CHOICES if (tokens <= choice).mean() >= COVERED), CHOICES[-1])


def _notes(tokens: np.ndarray[tuple[int], np.dtype[np.int64]], n: int, n_measured: int, max_length: int) -> tuple[str, ...]:
    n_cut = int((tokens > max_length).sum())
    cut = n_cut / len(tokens)
    notes = [f"max_length {max_length}: {cut:.1%} of the examples are longer and will be cut ({n_cut:,} of {len(tokens):,})"]
    if n_measured < n:
        notes.append(f"measured on {n_measured:,} of {n:,} examples, drawn at random")
    if cut > 1 - COVERED:
        notes.append(f"none of {', '.join(map(str, CHOICES))} covers {COVERED:.0%}: split or shorten the examples")
    if max_length >= LONG and not has_flash_attention():
        notes.append(
            f"{max_length} tokens without FlashAttention: slow, and attention's memory may grow with the square of the "
            "length; pip install flash-attn, or train with 2048"
        )
    return tuple(notes)


def has_flash_attention() -> bool:
    """Whether FlashAttention's own package is installed. PyTorch's sdpa has such kernels too, but not for padded batches."""
    return any(importlib.util.find_spec(name) is not None for name in ("flash_attn", "flash_attn_interface"))
