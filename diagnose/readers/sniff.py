"""Which format a file has, told by its content; the name is a hint, and decides how much silence is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from diagnose.errors import NotALog
from diagnose.names import EVAL_LOSS, TRAIN_LOSS, canonical
from diagnose.readers.events import is_event_file
from diagnose.readers.files import HEAD_BYTES, decode, read_bytes
from diagnose.readers.jsonl import parse_line
from diagnose.readers.table import delimiter_of, header
from diagnose.rows import number

#: Names that trainers give to their logs: such a file stands for its folder, and one that cannot be read is worth a word.
LOG_NAMES = frozenset({
    "trainer_state.json", "trainer_log.jsonl", "metrics.csv", "metrics.json", "metrics.jsonl", "log.txt", "log.csv", "log.json",
    "log.jsonl", "training.log", "training_log.csv", "history.csv", "history.json", "scalars.json", "results.csv",
})  # fmt: skip
#: Suffixes of files in a folder that are looked into at all.
SUFFIXES = frozenset({".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".log"})
#: In a model's folder these are the JSON files that Git LFS keeps; they are never logs.
_NEVER = frozenset({"tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "added_tokens.json", "special_tokens_map.json"})
#: `log_history` stands near the top of a state file, but a tool of one's own may put it behind other things.
_FAR_BYTES = 1 << 20
_LINES = 20
#: Longer than any word in a cell of a log, such as a timestamp or a split.
_WORD = 40


def is_candidate(name: str) -> bool:
    """Whether a file in a folder may be a log, by its name.

    >>> is_candidate("metrics.csv"), is_candidate("events.out.tfevents.1.host.2.0"), is_candidate("model.safetensors")
    (True, True, False)
    """
    low = name.lower()
    return "tfevents" in low or (Path(low).suffix in SUFFIXES and low not in _NEVER)


def is_log_name(name: str) -> bool:
    """Whether a file with this name is a log, whatever is in it."""
    return "tfevents" in name.lower() or name.lower() in LOG_NAMES


def format_of(path: Path) -> str | None:
    """`events`, `state`, `jsonl` or `table`; None when the content is none of them.

    Raises:
        ReadError: the file cannot be read.
        NotALog: it is empty or a Git LFS pointer.
    """
    head = read_bytes(path, HEAD_BYTES)
    low = path.name.lower()
    if is_event_file(head) or "tfevents" in low:
        return "events"
    try:
        text = decode(head).lstrip()
    except NotALog:
        return None
    lines = [line.strip() for line in text.splitlines()[:_LINES] if line.strip()]
    if not lines:
        return None
    if lines[0].startswith("{"):
        return _format_of_object(path, low, text, lines)
    if lines[0].startswith("["):
        return "state" if _mentions_loss(text) or low == "trainer_state.json" else None
    return "table" if len(lines) > 1 and _is_table(lines[0], lines[1:], low) else None


def _format_of_object(path: Path, low: str, text: str, lines: list[str]) -> str | None:
    """The format of a file that begins with a brace."""
    if '"log_history"' in text or low == "trainer_state.json":
        return "state"
    records = [record for line in lines if (record := parse_line(line)) is not None]
    several = len(records) > 1 or low.endswith(("jsonl", "ndjson"))
    if several and records:
        return "jsonl" if any(tells_loss(key) for record in records for key in record) or is_log_name(low) else None
    if re.search(r'"[^"]*loss[^"]*"\s*:\s*\[', text, re.IGNORECASE):
        return "state"
    if low.endswith(".json") and b'"log_history"' in read_bytes(path, _FAR_BYTES):
        return "state"
    return None


def _is_table(first: str, others: Sequence[str], low: str) -> bool:
    """Whether a line is a header that names a loss and numbers follow it."""
    delimiter = delimiter_of(first)
    names = [name.strip("\"' ") for name in header(first.split(delimiter))]
    if names[-2:] == ["Step", "Value"]:
        return True  # a chart that TensorBoard's page exported
    if not any(tells_loss(name) for name in names) or (len(names) == 1 and not low.endswith((".csv", ".tsv"))):
        return False
    # A console log or a script can mention losses and commas in its first line too, but numbers do not fill its columns.
    cells = [line.split(delimiter) for line in others]
    return any(len(row) == len(names) and all(is_cell(cell) for cell in row) for row in cells)


def is_cell(cell: str) -> bool:
    """Whether a cell of a log's table can stand there: a number, a blank or a single word.

    >>> is_cell("1.5"), is_cell(""), is_cell('"nan"'), is_cell("val loss 3.0")
    (True, True, True, False)
    """
    text = cell.strip().strip("\"'")
    return not text or number(text.replace(",", ".")) is not None or (len(text) < _WORD and not re.search(r"[\s:=(]", text))


def tells_loss(key: str) -> bool:
    """Whether a key is a loss: of training, of evaluation, or of the test data.

    >>> tells_loss("train_loss"), tells_loss("test_loss"), tells_loss("train/box_loss"), tells_loss("text")
    (True, True, True, False)
    """
    return canonical(key) in (TRAIN_LOSS, EVAL_LOSS) or bool(re.search(r"(^|[ _/.-])loss($|[ _/.-])", key, re.IGNORECASE))


def _mentions_loss(text: str) -> bool:
    """Whether the first row of a list of objects has a loss."""
    found = re.search(r"\{[^{}]*\}", text)
    if found is None:
        return False
    try:
        row = json.loads(found[0])
    except (ValueError, RecursionError):
        return False
    return any(tells_loss(key) for key in row)
