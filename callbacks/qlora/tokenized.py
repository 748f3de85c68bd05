"""All examples to tokens and labels, cut to the longest length, and the check that something is left to learn in each.

The columns `input_ids` and `labels` are what TRL's `SFTTrainer` takes as already prepared. Prepared by TRL itself, an
example whose answer lies beyond the cut would be dropped without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diagnose.callbacks.qlora.data import TrainingData
from diagnose.callbacks.qlora.encode import IGNORED, Encoded, encode
from diagnose.callbacks.qlora.read_rows import BadRow
from diagnose.errors import TrainingInputError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

#: So many examples are named in a message.
_NAMED = 10


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
        TrainingInputError: no chat template where one is needed, or no example with a label left.
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
    from datasets import Dataset

    ids, labels = [], []
    n_cut = n_several = 0
    for i, example in enumerate(examples):
        sequences = encode(example, tokenizer)
        n_several += len(sequences) > 1
        for sequence in sequences:
            n_cut += len(sequence.input_ids) > max_length
            cut = Encoded(sequence.input_ids[:max_length], sequence.labels[:max_length])
            if all(label == IGNORED for label in cut.labels):
                left_out.append(BadRow(f"{name} example {i}", f"its answer begins after {max_length} tokens"))
            else:
                ids.append(cut.input_ids)
                labels.append(cut.labels)
    beyond = sum(bad.place.startswith(f"{name} ") for bad in left_out)
    if n_several:
        notes.append(
            f"{n_several:,} {name} conversations became one sequence an answer, {len(ids):,} sequences in all: "
            "the chat template rewrites earlier turns"
        )
    if n_cut:
        notes.append(f"{n_cut:,} of {len(ids) + beyond:,} {name} sequences cut at {max_length} tokens")
    if beyond:
        places = ", ".join(bad.place.rpartition(" ")[2] for bad in left_out if bad.place.startswith(f"{name} "))
        notes.append(
            f"{beyond:,} {name} sequences left out, whose answers begin after {max_length} tokens: number {_short(places)}"
        )
    return Dataset.from_dict({"input_ids": ids, "labels": labels})


def _short(places: str) -> str:
    named = places.split(", ")
    return ", ".join(named[:_NAMED]) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")
