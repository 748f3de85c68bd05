"""The Trainer's `trainer_state.json`, or any JSON with a `log_history` or a bare list of logged rows.

An output folder holds the same history many times, once for each checkpoint: the longest one is the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.errors import NotALog
from diagnose.model import Note, Run, Setting
from diagnose.names import EVAL_LOSS, TRAIN_LOSS, canonical
from diagnose.readers.files import counted, read_text
from diagnose.readers.own_file import merged, note_of, observed
from diagnose.readers.records import runs_of
from diagnose.readers.settings import from_folder, from_state

_TOP_LEVEL = re.compile(r'"(\w+)"\s*:\s*(-?[\d.eE+]+|"[^"]*"|true|false|null)\s*,')


@dataclass
class State:
    """One state file: its rows, the settings that it knows, and what was wrong with it.

    In the Trainer's own `log_history` an epoch is no step, even where it is whole and the steps are missing.
    """

    path: Path
    rows: list[Mapping[str, Any]]
    settings: dict[str, Setting]
    notes: list[Note]
    is_history: bool


def load(path: Path) -> State:
    """Read one file.

    Raises:
        ReadError: the file cannot be read, or was cut off before its first row ended.
        NotALog: it holds no rows.
    """
    text = read_text(path)
    notes = []
    try:
        content = json.loads(text)
    except RecursionError:
        raise NotALog("its JSON is nested too deeply to be a log") from None
    except ValueError as error:  # broken syntax, or an integer of thousands of digits
        content = _recover(text)
        if content is None:
            raise NotALog(f"broken or truncated JSON without one complete row: {error}") from None
        count = len(content["log_history"])
        notes.append(Note("truncated", f"the file is cut off or broken: {counted(count, 'complete row')} recovered"))
    return _state(path, content, notes)


def _state(path: Path, content: Any, notes: list[Note]) -> State:
    """Pick the rows and settings out of parsed JSON."""
    if isinstance(content, dict) and "log_history" in content:
        rows = content["log_history"]
        if not isinstance(rows, list):
            raise NotALog(f"log_history is no list of rows but {type(rows).__name__}")
        if not rows:
            raise NotALog("log_history is empty")
        settings = from_state(content)
    elif is_rows(content):
        rows, settings = content, {}
    elif isinstance(content, dict) and (columns := _columns(content)) is not None:
        rows, settings = columns, {}
    else:
        raise NotALog(f"JSON, but no log: expected a `log_history` or a list of rows with a loss, found {_what(content)}")
    good: list[Mapping[str, Any]] = [row for row in rows if isinstance(row, dict)]
    if len(good) < len(rows):
        notes.append(Note("broken-lines", f"{counted(len(rows) - len(good), 'row')} of {len(rows)} left out: no object"))
    return State(path, good, settings, notes, isinstance(content, dict) and "log_history" in content)


def is_rows(content: Any) -> bool:
    """Whether parsed JSON is a list of logged rows.

    >>> is_rows([{"loss": 1.0}]), is_rows([{"text": "a"}]), is_rows([])
    (True, False, False)
    """
    if not isinstance(content, list):
        return False
    some = [row for row in content[:50] if isinstance(row, dict)]
    return any(canonical(str(key)) in (TRAIN_LOSS, EVAL_LOSS) for row in some for key in row)


def _columns(content: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Rows from a dict of equally long lists, as Keras's `History.history` is dumped; None when it is none."""
    lists = {key: value for key, value in content.items() if isinstance(value, list) and value}
    if not any(canonical(key) in (TRAIN_LOSS, EVAL_LOSS) for key in lists):
        return None
    longest = max(len(value) for value in lists.values())
    return [{key: value[i] for key, value in lists.items() if i < len(value)} for i in range(longest)]


def _what(content: Any) -> str:
    if isinstance(content, dict):
        return "an object with " + (", ".join(str(key)[:40] for key in list(content)[:5]) or "nothing in it")
    return f"a list of {len(content)}" if isinstance(content, list) else f"a {type(content).__name__}"


def _recover(text: str) -> dict[str, Any] | None:
    """What stands before the cut in a broken file: the complete rows and the plain settings; None without a row."""
    found = re.search(r'"log_history"\s*:\s*\[|^\s*\[', text)
    if found is None:
        return None
    decoder = json.JSONDecoder()
    rows, at = [], found.end()
    gap = re.compile(r"[\s,]*")
    while at < len(text):
        start = gap.match(text, at)
        at = at if start is None else start.end()
        if not text.startswith("{", at):
            break
        try:
            row, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        rows.append(row)
    if not rows:
        return None
    plain = _TOP_LEVEL.findall(text[: found.start()])
    return {key: json.loads(value) for key, value in plain if _is_json(value)} | {"log_history": rows}


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def to_runs(state: State, *, id: str, source: str, folders: Sequence[Path], notes: Sequence[Note] = ()) -> list[Run]:
    """The run, or the runs, of a state file.

    Args:
        state: as loaded.
        id: see `Run`.
        source: see `Run`.
        folders: where adapter, model and doctor files of the run may lie, the best source first.
        notes: what is known of it beside its own notes.
    """
    told: list[Note] = []
    settings = state.settings | from_folder(folders, told)
    seen = observed(folders) if state.is_history else []
    told += filter(None, map(note_of, seen))
    return runs_of(
        merged(state.rows, seen),
        id=id,
        source=source,
        settings=settings,
        notes=[*state.notes, *notes, *told],
        epoch_as_step=not state.is_history,
    )


def families(states: Sequence[State]) -> list[tuple[State, list[State]]]:
    """The states of one output folder as runs: each the longest of its history, with the shorter ones that it contains.

    Args:
        states: of the folder and of the checkpoints in it.
    """
    found: list[tuple[State, list[State]]] = []
    for state in sorted(states, key=lambda s: len(s.rows), reverse=True):
        home = next((shorter for longest, shorter in found if _is_prefix(state.rows, longest.rows)), None)
        if home is None:
            found.append((state, []))
        else:
            home.append(state)
    return found


def _is_prefix(short: Sequence[Mapping[str, Any]], long: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a history is how another began. NaN equals NaN here."""
    return all(a == b or repr(a) == repr(b) for a, b in zip(short, long, strict=False))
