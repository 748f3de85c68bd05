"""Rows of training data from whatever holds them: a file, a folder, a saved data set or a name on the hub.

A file is known by what it holds; its extension decides only where the content leaves a choice. A row that cannot be
read is kept aside with its line and its reason.

Not covered: archives other than gzip, Excel sheets, Arrow files outside a saved data set.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.errors import TrainingInputError

#: What is read in a folder that is no saved data set.
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")

#: The keys under which a JSON object holds its rows.
_CONTAINERS = ("data", "train", "rows", "examples")

_PARQUET, _GZIP, _UTF16 = b"PAR1", b"\x1f\x8b", (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it was read.

    Attributes:
        place: where it is: `train.jsonl line 17`.
        values: by column; what is None is as good as absent.
    """

    place: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that was left out.

    Attributes:
        place: where it is: `train.jsonl line 17`.
        reason: what is wrong with it: `empty answer`.
    """

    place: str
    reason: str


@dataclass(slots=True)
class Rows:
    """What was read.

    Attributes:
        rows: in their order.
        bad: those that could not be read.
        split: the split that they are, where the source has several.
    """

    rows: list[Row] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    split: str = ""


def read_rows(path: Path) -> Rows:
    """Read a file, or all files of a folder in the order of their names.

    Raises:
        TrainingInputError: nothing there, nothing in it, or a file that is none of the known formats.
    """
    found = Rows()
    for file in _files(path):
        _read_file(file, found)
    if not found.rows and not found.bad:
        raise TrainingInputError(f"{path} holds no rows: give a file with at least one example")
    return found


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and _suffix(file) in SUFFIXES)
    if not files:
        raise TrainingInputError(f"{path} holds no data: expected a saved data set, or files that end in {', '.join(SUFFIXES)}")
    return files


def _suffix(file: Path) -> str:
    return Path(file.stem).suffix.lower() if file.suffix.lower() == ".gz" else file.suffix.lower()


def _read_file(file: Path, found: Rows) -> None:
    try:
        content = file.read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise TrainingInputError(f"no such file or folder: {file}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise TrainingInputError(f"{file} cannot be read: {error}") from None
    if content.startswith(_PARQUET):
        _read_parquet(file, content, found)
        return
    encoding = "utf-16" if content.startswith(_UTF16) else "utf-8-sig"
    # What is not UTF-8 becomes a surrogate: only the rows that hold one are bad, not the file.
    text = content.decode(encoding, errors="surrogateescape" if encoding == "utf-8-sig" else "replace")
    start = text.lstrip()[:1]
    if not start:
        return
    if start == "[" or (start == "{" and not _is_json_lines(text)):
        _read_json(file, text, found)
    elif start == "{" or _suffix(file) in (".jsonl", ".ndjson"):
        _read_json_lines(file, text, found)
    elif _suffix(file) in (".csv", ".tsv", ".txt", ""):
        _read_csv(file, text, found)
    else:
        known = "JSONL, JSON, CSV, TSV or Parquet"
        raise TrainingInputError(f"{file} is not {known}: it starts with {text.lstrip()[:20]!r}")


def _is_json_lines(text: str) -> bool:
    """Whether a text that starts with `{` has one JSON value a line, and not one value over several lines."""
    lines = (line for line in text.split("\n") if line.strip())
    first = next(lines)
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        # A broken first line among good ones, or a pretty-printed object: what follows tells.
        return any(line.startswith("{") and line.rstrip().endswith("}") for line in lines)
    is_only_one = next(lines, None) is None
    return not (is_only_one and _container(value) is not None)


def _container(value: Any) -> str | None:
    """The key under which a JSON object holds its rows, if it does."""
    if not isinstance(value, dict):
        return None
    held = [key for key in _CONTAINERS if isinstance(value.get(key), list) and all(isinstance(v, dict) for v in value[key])]
    return held[0] if held else None


def _read_json(file: Path, text: str, found: Rows) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if _suffix(file) in (".jsonl", ".ndjson"):
            _read_json_lines(file, text, found)
            return
        raise TrainingInputError(f"{file} is not valid JSON: {error}; with one example a line, name it .jsonl") from None
    key = _container(value)
    rows = value[key] if key else value if isinstance(value, list) else [value]
    for i, row in enumerate(rows, start=1):
        _add(found, f"{file.name} row {i}", row)


def _read_json_lines(file: Path, text: str, found: Rows) -> None:
    # Not splitlines(): U+2028 and its like may stand inside a JSON string.
    for i, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{file.name} line {i}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            found.bad.append(BadRow(place, f"not JSON: {error}"))
            continue
        _add(found, place, value)


def _read_csv(file: Path, text: str, found: Rows) -> None:
    csv.field_size_limit(sys.maxsize)  # the default, 131,072 characters, is less than a long conversation
    first = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = max("\t,;" if _suffix(file) == ".tsv" else ",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    header: list[str] | None = None
    try:
        for cells in reader:
            if not any(cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                if len(set(header)) < len(header):
                    raise TrainingInputError(f"{file} has a column twice: {', '.join(header)}; rename one of them")
            elif len(cells) != len(header):
                reason = f"{len(cells)} cells where the header has {len(header)}"
                found.bad.append(BadRow(f"{file.name} line {reader.line_num}", reason))
            else:
                _add(found, f"{file.name} line {reader.line_num}", dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise TrainingInputError(f"{file} line {reader.line_num} is not valid CSV: {error}") from None


def _read_parquet(file: Path, content: bytes, found: Rows) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TrainingInputError(f"{file} is Parquet, which needs: pip install 'curve-doctor[train]'") from None
    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        raise TrainingInputError(f"{file} is not a readable Parquet file: {error}") from None
    for i, row in enumerate(_table_rows(table), start=1):
        _add(found, f"{file.name} row {i}", row)


def _table_rows(table: Any) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches():
        yield from batch.to_pylist()


def _add(found: Rows, place: str, value: Any) -> None:
    if not isinstance(value, dict):
        found.bad.append(BadRow(place, f"is {type_name(value)}, not an object with columns"))
    elif _has_broken_text(value):
        found.bad.append(BadRow(place, "holds bytes that are not UTF-8 text"))
    else:
        found.rows.append(Row(place, value))


def _has_broken_text(value: Any) -> bool:
    """Whether a lone surrogate is in it: neither tokenizers nor Arrow take one."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return True
        return False
    if isinstance(value, dict):
        return any(_has_broken_text(item) for item in value.values())
    return isinstance(value, list) and any(_has_broken_text(item) for item in value)


def type_name(value: Any) -> str:
    """What a value is, in words of the data's author.

    >>> type_name(4), type_name({}), type_name(None)
    ('a number', 'an object', 'missing')
    """
    names = {
        "NoneType": "missing",
        "int": "a number",
        "float": "a number",
        "str": "text",
        "dict": "an object",
        "bool": "true or false",
    }
    name = type(value).__name__
    return names.get(name, f"a {name}")
