"""From what the user names to the examples that are trained on and those that are held out.

    data = load_data("train.jsonl", chat=tokenizer.chat_template is not None)
    for note in data.notes:
        print(note)

The examples have the columns that TRL's `SFTTrainer` takes. `tokenized.py` makes tokens and labels of them, with the loss
on the answers only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from diagnose.callbacks.qlora.columns import BadExampleError, Kind, Layout, example_of, kind_of, layout_of
from diagnose.callbacks.qlora.read_rows import BadRow, Rows, read_rows
from diagnose.callbacks.qlora.saved_data import is_saved, looks_like_a_path, read_hub, read_saved
from diagnose.callbacks.qlora.split import ENOUGH, TOO_FEW, held_out, key
from diagnose.errors import MissingExtraError, TrainingInputError

if TYPE_CHECKING:
    from datasets import Dataset

#: So many places of bad rows are named in a note; `TrainingData.left_out` has all.
_NAMED = 10


@dataclass(frozen=True)
class TrainingData:
    """Examples to train on.

    Attributes:
        train: `messages`, or `prompt` and `completion`, or `text`, by `kind`; `input_ids` and `labels` once tokenized.
        validation: likewise; None where there are too few examples to hold some out.
        kind: what the examples are.
        notes: what was recognised, left out, moved or kept, a sentence each.
        left_out: every row that was left out.
    """

    train: Dataset
    validation: Dataset | None
    kind: Kind
    notes: tuple[str, ...]
    left_out: tuple[BadRow, ...] = ()


@dataclass(frozen=True)
class _Source:
    """The good examples of one source."""

    examples: list[dict[str, Any]]
    layout: Layout
    kind: Kind
    notes: list[str]
    left_out: list[BadRow]


def load_data(train: str, validation: str | None = None, *, seed: int = 42, chat: bool = True) -> TrainingData:
    """Load, recognise, check and split training data.

    Args:
        train: a file (JSONL, JSON, CSV, TSV, Parquet), a folder of such files, a folder that `save_to_disk` wrote, or a
            name on the hub: `name`, or `name:configuration`.
        validation: likewise; if None, the validation split of a saved data set, or examples drawn from `train`.
        seed: of that draw.
        chat: whether the tokenizer has a chat template; instructions without one get Alpaca's own prompt.

    Raises:
        MissingExtraError: `datasets` is not installed.
        TrainingInputError: nothing to train on; the message says why and what to do.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingExtraError(f"training needs datasets ({error}): pip install 'curve-doctor[train]'") from error

    rows, own_validation = _rows(train, "train")
    source = _examples(train, rows, chat=chat)
    notes, left_out, examples = source.notes, source.left_out, source.examples
    keys = [key(example) for example in examples]
    given = own_validation if validation is None else _rows(validation, "validation")[0]
    if given is None:
        drawn = held_out(keys, seed=seed)
        kept_back = [examples[i] for i in drawn]
        notes.append(_split_note(len(drawn), len(set(keys)), seed))
    else:
        name = validation or f"the {given.split} split of {train}"
        other = _examples(name, given, chat=chat)
        if kind_of(other.layout, chat=chat) != source.kind:
            raise TrainingInputError(
                f"{name} has {other.layout} rows, but {train} has {source.layout} rows: give both the same columns"
            )
        notes, left_out, kept_back = notes + other.notes, left_out + other.left_out, other.examples
    outside = {key(example) for example in kept_back}
    kept = [example for example, its_key in zip(examples, keys, strict=True) if its_key not in outside]
    n_shared = len(examples) - len(kept) - (len(kept_back) if given is None else 0)
    if n_shared:
        notes.append(f"{_count(n_shared, 'training example')} removed that the validation set holds as well")
    n_repeated = len(kept) - len(set(keys) - outside)
    if n_repeated:
        notes.append(f"{_count(n_repeated, 'training example')} repeat others word for word, and are kept")
    if not kept:
        raise TrainingInputError(f"every example of {train} is in the validation set as well: give other validation data")
    return TrainingData(
        train=Dataset.from_list(kept),
        validation=Dataset.from_list(kept_back) if kept_back else None,
        kind=source.kind,
        notes=tuple(notes),
        left_out=tuple(left_out),
    )


def _rows(name: str, split: str) -> tuple[Rows, Rows | None]:
    """The rows of a source, and those of its own validation split if it has one."""
    path = Path(name).expanduser()
    if is_saved(path):
        return read_saved(path, split)
    if path.exists() or looks_like_a_path(name):
        return read_rows(path), None
    return read_hub(name, split)


def _examples(name: str, rows: Rows, *, chat: bool) -> _Source:
    """Turn rows into examples: all in the layout that most of them have."""
    bad = list(rows.bad)
    layouts = [layout_of(row.values) for row in rows.rows]
    counts = Counter(layout for layout in layouts if layout is not None)
    if not counts:
        _refuse(name, rows)
    layout = counts.most_common(1)[0][0]
    examples = []
    n_unanswered = 0
    for row, its_layout in zip(rows.rows, layouts, strict=True):
        if its_layout != layout:
            bad.append(BadRow(row.place, f"columns {_columns(row.values)} where most rows are {layout}"))
            continue
        try:
            example = example_of(row.values, layout, chat=chat)
        except BadExampleError as error:
            bad.append(BadRow(row.place, str(error)))
            continue
        n_unanswered += "messages" in example and _has_trailing(row.values, example["messages"])
        examples.append(example)
    if not examples:
        raise TrainingInputError(f"no row of {name} can be trained on: {_reasons(bad)}")
    shown = _columns(next(row.values for row, its in zip(rows.rows, layouts, strict=True) if its == layout))
    notes = [f"{name}: {_count(len(examples), 'example')}, recognised as {layout} by the columns {shown}"]
    if bad:
        n_all = len(examples) + len(bad)
        notes.append(f"{name}: {len(bad)} of {_count(n_all, 'row')} left out: {_reasons(bad)}")
    if n_unanswered:
        notes.append(f"{name}: {_count(n_unanswered, 'conversation')} cut after the last answer")
    return _Source(examples, layout, kind_of(layout, chat=chat), notes, bad)


def _has_trailing(row: dict[str, Any], kept: Sequence[Any]) -> bool:
    turns = row.get("messages") or row.get("conversations")
    return isinstance(turns, list) and len(turns) > len(kept)


def _refuse(name: str, rows: Rows) -> NoReturn:
    expected = "messages, conversations, prompt and completion, instruction and output, or text"
    if not rows.rows:
        raise TrainingInputError(f"no row of {name} can be read: {_reasons(rows.bad)}")
    has = _columns(rows.rows[0].values)
    raise TrainingInputError(f"{name} has the columns {has}; expected {expected}: rename them to one of these")


def _columns(values: dict[str, Any]) -> str:
    return ", ".join(sorted(map(str, values))) or "(none)"


def _reasons(bad: Sequence[BadRow]) -> str:
    """`empty answer (3: train.jsonl line 4, train.jsonl line 9, ...); not JSON ...`."""
    places = defaultdict(list)
    for row in bad:
        # the position inside a line differs from row to row
        places[row.reason.split(": ", 1)[0] if row.reason.startswith("not JSON") else row.reason].append(row.place)
    told = []
    for reason, where in sorted(places.items(), key=lambda item: -len(item[1])):
        more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
        told.append(f"{reason} ({len(where)}: {', '.join(where[:_NAMED])}{more})")
    return "; ".join(told)


def _split_note(n_drawn: int, n_different: int, seed: int) -> str:
    if not n_drawn:
        return (
            f"no validation set: {_count(n_different, 'different example')} are too few to hold some out "
            f"({TOO_FEW} needed); give a validation file"
        )
    why = f"; a tenth, since fewer than {ENOUGH}" if n_different < ENOUGH else ""
    return f"{_count(n_drawn, 'example')} of {n_different:,} held out for validation (seed {seed}{why})"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
