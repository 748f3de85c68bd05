"""All examples to tokens and labels, cut to the longest length, and the check that something is left to learn in each.

The columns `input_ids` and `labels` are what TRL's `SFTTrainer` takes as already prepared. Prepared by TRL itself, an
example whose answer lies beyond the cut would be dropped without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diagnose.callbacks.qlora.data import TrainingData
from diagnose.callbacks.qlora.encode import IGNORED, ChatTemplateError, Encoded, encode
from diagnose.callbacks.qlora.read_rows import BadRow
from diagnose.errors import TrainingInputError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

#: So many examples are named in a message.
_NAMED = 10

#: So many sequences are turned into Arrow at once.
_BLOCK = 1000


def tokenize_data(data: TrainingData, tokenizer: PreTrainedTokenizerBase, max_length: int) -> TrainingData:
    """Tokenize training data.

    Args:
        data: what `load_data` gave.
        tokenizer: of the model, prepared by `prepare_tokenizer`.
        max_length: what is longer is cut at its end, in tokens.

    Returns:
        The data with the columns `input_ids` and `labels`, and notes on what was cut and what was left out because its
        answer lay beyond the cut.

    Raises:
        TrainingInputError: no chat template where one is needed, one that refuses every example, or no example with a label
            left.
    """
    notes: list[str] = []
    left_out: list[BadRow] = []
    train = _tokenize("training", data.train, tokenizer, max_length, notes, left_out)
    if not len(train):
        raise TrainingInputError(
            f"every answer lies beyond {max_length} tokens, so nothing is left to learn: raise it, or shorten the prompts"
        )
    validation = data.validation
    if validation is not None:
        validation = _tokenize("validation", validation, tokenizer, max_length, notes, left_out)
        validation = validation if len(validation) else None
    return replace(data, train=train, validation=validation, notes=(*data.notes, *notes), left_out=(*data.left_out, *left_out))


def check_labels(examples: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> float:
    """Check that each example has a label left, so that each teaches something.

    Args:
        examples: tokenized examples with `labels` (length,), or one collated batch with `labels` (n, length).

    Returns:
        The share of the tokens that are learned, padding and prompts counted as not.

    Raises:
        TrainingInputError: an example has no label, or there is no example.

    >>> check_labels([{"labels": [-100, -100, 5, 2]}, {"labels": [-100, 7, 8, 2]}])
    0.625
    """
    rows = examples["labels"] if isinstance(examples, Mapping) else [example["labels"] for example in examples]
    counts = [(sum(int(label) != IGNORED for label in row), len(row)) for row in rows]
    if not counts:
        raise TrainingInputError("no example to train on")
    empty = [i for i, (learned, _) in enumerate(counts) if not learned]
    if empty:
        named = ", ".join(map(str, empty[:_NAMED])) + (", ..." if len(empty) > _NAMED else "")
        raise TrainingInputError(
            f"{len(empty)} of {len(counts)} examples have no label left (number {named}): "
            "their answers are empty or lie beyond max_length"
        )
    return sum(learned for learned, _ in counts) / sum(length for _, length in counts)


def _tokenize(
    name: str, examples: Dataset, tokenizer: Any, max_length: int, notes: list[str], left_out: list[BadRow]
) -> Dataset:
    """Tokenize one set; adds to the notes and to what was left out."""
    beyond: list[BadRow] = []
    refused: list[BadRow] = []
    kept = _Kept()
    n_cut = n_several = 0
    error: ChatTemplateError | None = None
    for i, example in enumerate(examples):
        try:
            sequences = encode(example, tokenizer)
        except ChatTemplateError as refusal:
            error = refusal
            refused.append(BadRow(f"{name} example {i}", str(refusal)))
            continue
        n_several += len(sequences) > 1
        for sequence in sequences:
            n_cut += len(sequence.input_ids) > max_length
            cut = Encoded(sequence.input_ids[:max_length], sequence.labels[:max_length])
            if all(label == IGNORED for label in cut.labels):
                beyond.append(BadRow(f"{name} example {i}", f"its answer begins after {max_length} tokens"))
            else:
                kept.add(cut)
    if error is not None and not kept.n and not beyond:
        raise error
    if n_several:
        notes.append(
            f"{n_several:,} {name} conversations became one sequence an answer, {kept.n:,} sequences in all: "
            "the chat template rewrites earlier turns"
        )
    if n_cut:
        notes.append(f"{n_cut:,} of {kept.n + len(beyond):,} {name} sequences cut at {max_length} tokens")
    if beyond:
        notes.append(
            f"{len(beyond):,} {name} sequences left out, whose answers begin after {max_length} tokens: {_named(beyond)}"
        )
    if refused:
        notes.append(f"{len(refused):,} {name} examples left out: {refused[0].reason}: {_named(refused)}")
    left_out += beyond + refused
    return kept.dataset()


class _Kept:
    """Sequences in Arrow's memory, a block at a time: as Python numbers they would take eight times as much."""

    def __init__(self) -> None:
        self.n = 0
        self._block: list[Encoded] = []
        self._blocks: list[Dataset] = []

    def add(self, sequence: Encoded) -> None:
        self.n += 1
        self._block.append(sequence)
        if len(self._block) == _BLOCK:
            self._store()

    def dataset(self) -> Dataset:
        """All of them, in order."""
        from datasets import concatenate_datasets

        if self._block or not self._blocks:
            self._store()
        return concatenate_datasets(self._blocks)

    def _store(self) -> None:
        from datasets import Dataset, Features, List, Value

        numbers = List(Value("int32"))
        columns = {
            "input_ids": [sequence.input_ids for sequence in self._block],
            "labels": [sequence.labels for sequence in self._block],
        }
        self._blocks.append(Dataset.from_dict(columns, features=Features(input_ids=numbers, labels=numbers)))
        self._block = []


def _named(rows: list[BadRow]) -> str:
    """`number 3, 8, 9 and 4 more`."""
    numbers = [row.place.rpartition(" ")[2] for row in rows]
    return f"number {', '.join(numbers[:_NAMED])}" + (f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else "")
