"""Logged rows, as any text format yields them, to Runs: names, steps, restarts and repeats are settled here.

A record is what one line of a log said: raw key to raw value. Which key is the step, which keys tell the same metric, and
whether a log holds one run or several can be told only from all of them together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diagnose.errors import NotALog
from diagnose.model import Note, Row, Run, Setting
from diagnose.names import EPOCH, EVAL_LOSS, GRAD_NORM, LEARNING_RATE, TRAIN_LOSS, canonical
from diagnose.readers.files import counted
from diagnose.readers.keys import Key, resolve, step_key, whole
from diagnose.readers.segments import continue_epochs, place_evaluations, segments
from diagnose.readers.total import with_total
from diagnose.rows import build_run, number

Record = Mapping[str, Any]

#: Texts that stand for "nothing was logged here".
_BLANK = frozenset({"", "no log", "-", "--", "none", "null", "n/a", "na"})
#: Keys that say which data set a row is about, as MMDetection and many own loops write them.
_SPLIT_KEYS = ("mode", "split", "phase", "stage", "subset", "type")
#: Metrics whatever is logged under their names.
_METRICS = frozenset({TRAIN_LOSS, EVAL_LOSS, GRAD_NORM, LEARNING_RATE})
_NOT_A_CURVE = frozenset({EPOCH, LEARNING_RATE})


@dataclass
class _Said:
    """What happened on the way and has to be told."""

    bad: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    numbers: set[str] = field(default_factory=set)
    no_step: int = 0
    counted: bool = False

    def notes(self, n: int) -> list[Note]:
        notes = []
        # A key that only ever held texts, such as a name or a date, is no metric.
        texts = {key: n for key, n in self.texts.items() if key in self.numbers or canonical(key) in _METRICS}
        for key, count in (self.bad + Counter(texts)).items():
            text = f"{counted(count, 'value')} of {key} dropped: not a number"
            notes.append(Note("not-a-number", text))
        if self.no_step:
            notes.append(Note("no-step", f"{counted(self.no_step, 'row')} of {n} dropped: no step"))
        if self.counted:
            notes.append(Note("counted-steps", "the log has no steps: they are counted in logged rows"))
        return notes


def runs_of(
    records: Sequence[Record],
    *,
    id: str,
    source: str,
    settings: Mapping[str, Setting] | None = None,
    notes: Sequence[Note] = (),
    epoch_as_step: bool = True,
) -> list[Run]:
    """Every run that the records of one log tell of.

    Args:
        records: in the order in which they were logged.
        id: of the first run; further ones get `#2`, `#3` …
        source: see `Run`.
        settings: see `Run`.
        notes: what the reader has to say already.
        epoch_as_step: whether whole epochs may serve as steps where there are none; rows are counted otherwise.

    Raises:
        NotALog: no record holds a metric.
    """
    kept = [(i, r) for i, r in enumerate(records) if not is_summary(r)]
    counts: Counter[str] = Counter()
    for _, record in kept:
        counts.update(record.keys())
    keys, key_notes = resolve(counts)
    said = _Said()
    rows = _rows(kept, keys, step_key(counts), said, epoch_as_step)
    timed = step_key(counts) is not None or EPOCH in keys.values()
    curves = {name for row in rows for name in row.values} - _NOT_A_CURVE
    if not (curves if timed else any(name.endswith("loss") for name in curves)):
        told = ", ".join(list(counts)[:6]) if counts else "nothing but a summary"
        raise NotALog(f"no loss and no other metric in its {len(records)} rows: they hold {told}")
    rows, epoch_notes = continue_epochs(rows)
    rows, eval_notes = place_evaluations(rows)
    parts, part_notes = segments(rows)
    common = [*notes, *key_notes, *said.notes(len(records)), *epoch_notes, *eval_notes, *part_notes]
    runs = []
    for k, part in enumerate(parts, 1):
        own = list(common)
        if len(parts) > 1:
            own.append(Note("mixed-runs", f"the log holds {len(parts)} runs, as its steps start again: this is number {k}"))
        name = id if k == 1 else f"{id}#{k}"
        runs.append(with_total(build_run(part, id=name, source=source, settings=settings, notes=own)))
    return runs


def is_summary(record: Record) -> bool:
    """Whether a record is the Trainer's closing summary, whose `train_loss` averages the whole run.

    >>> is_summary({"train_loss": 1.2, "train_runtime": 60.0}), is_summary({"train_loss": 1.2, "epoch": 3})
    (True, False)
    """
    return "train_loss" in record and "train_runtime" in record and "loss" not in record


def _rows(
    records: Sequence[tuple[int, Record]], keys: Mapping[str, Key], step_name: str | None, said: _Said, epoch_as_step: bool
) -> list[Row]:
    """One Row for each record that holds a metric, in the order of the log."""
    rows: list[Row] = []
    last: int | None = None
    # MMEngine's validation rows lack `iter`, and their `step` is the epoch.
    iter_marks_train = step_name == "step" and "iter" in keys
    split_keys = [key for key in _SPLIT_KEYS if key in keys]
    for index, record in records:
        values, epoch = _values(record, keys, said)
        if not values:
            continue
        side = _side(record, split_keys) if split_keys else None
        if side == "test":
            continue
        if iter_marks_train and "iter" not in record and TRAIN_LOSS not in values:
            side = "eval"
        if side == "eval":
            values = {_as_eval(name): v for name, v in values.items() if name != LEARNING_RATE}
        step = index + 1 if step_name is None else whole(record.get(step_name))
        if side == "eval" and last is not None and step is not None and step < last:
            step = last
        if step is None and last is not None and all(n.startswith("eval/") for n in values):
            step = last  # a final evaluation that was logged without a step
        if step is None:
            said.no_step += not _METRICS.isdisjoint(values)
            continue
        last = step
        rows.append(Row(step, values, epoch))
    if step_name is None and epoch_as_step and _epochs_serve(rows):
        return [Row(int(row.epoch), row.values, row.epoch) for row in rows if row.epoch is not None]
    said.counted = step_name is None
    return rows


def _values(record: Record, keys: Mapping[str, Key], said: _Said) -> tuple[dict[str, float], float | None]:
    """The metrics of a record by canonical name, and its epoch."""
    values: dict[str, float] = {}
    epoch = None
    for key, raw in record.items():
        name = keys.get(key)
        if name is None or key in _SPLIT_KEYS:
            continue
        value = raw if type(raw) is float else number(raw)
        if value is None:
            if isinstance(raw, str):
                said.texts[key] += raw.strip().lower() not in _BLANK
            elif raw is not None:
                said.bad[key] += 1
        elif name == EPOCH:
            epoch = value
        else:
            values[name] = value
            said.numbers.add(key)
    return values, epoch


def _side(record: Record, split_keys: Sequence[str]) -> str | None:
    """`eval` or `test` when the record says so in a key of its own; None for training or when it does not say."""
    for key in split_keys:
        value = record.get(key)
        if isinstance(value, str):
            word = value.strip().lower()
            if word.startswith(("val", "eval", "dev")):
                return "eval"
            if word.startswith(("test", "predict")):
                return "test"
    return None


def _as_eval(name: str) -> str:
    """The same metric on the validation set."""
    return "eval/" + name.removeprefix("train/") if name.startswith("train/") else name


def _epochs_serve(rows: Sequence[Row]) -> bool:
    """Whether whole epochs can be the steps: each row has one, and no metric comes twice in the same epoch."""
    seen: dict[str, float] = {}
    for row in rows:
        epoch = row.epoch
        if epoch is None or not math.isfinite(epoch) or epoch != int(epoch) or abs(epoch) > 2**53:
            return False
        for name in row.values:
            if seen.get(name) == epoch:
                return False
            seen[name] = epoch
    return bool(rows)
