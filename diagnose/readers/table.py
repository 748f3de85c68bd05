"""Tables with a header: Lightning's `metrics.csv`, Keras's CSVLogger and every other CSV with a column of losses."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diagnose.errors import NotALog
from diagnose.model import Note, Run
from diagnose.readers.files import counted, read_text
from diagnose.readers.records import runs_of
from diagnose.readers.settings import from_folder

#: TensorBoard's page calls the CSV of a chart after its tag: `run-train-tag-loss.csv`, with `/` turned into `_`.
_EXPORTED = re.compile(r"(?:^|-)tag-(.+)$")
_DELIMITERS = ",\t;|"


def read(path: Path, *, id: str, source: str) -> list[Run]:
    """The runs in a table. Blank cells are no values; rows shorter or longer than the header are read as far as they go.

    Args:
        path: of the file.
        id: see `Run`.
        source: see `Run`.

    Raises:
        ReadError: the file cannot be read.
        NotALog: it is no table, has no rows, or no metric among its columns.
    """
    records, notes = parse(read_text(path))
    exported = _EXPORTED.search(path.stem)
    if exported and records and {"Step", "Value"} <= records[0].keys():
        records = [{"step": r.get("Step"), exported[1].replace("_", "/", 1): r.get("Value")} for r in records]
    settings = from_folder([path.parent], notes)
    runs: list[Run] = []
    for name, own in by_run(records).items():
        runs += runs_of(own, id=f"{id}/{name}" if name else id, source=source, settings=settings, notes=notes)
    return runs


def by_run(records: list[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The records of each run in a chart that W&B exported, whose columns are called `run - metric`.

    Its `__MIN` and `__MAX` columns, which tell the marked chart apart from other tables, are left out.

    >>> by_run([{"Step": "4", "a - loss": "2", "a - loss__MIN": "1", "b - loss": "3"}])
    {'a': [{'Step': '4', 'loss': '2'}], 'b': [{'Step': '4', 'loss': '3'}]}
    """
    if not any(key.endswith("__MIN") for record in records[:1] for key in record):
        return {"": records}
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        shared = {key: value for key, value in record.items() if " - " not in key}
        split: dict[str, dict[str, Any]] = {}
        for key, value in record.items():
            run, mark, metric = key.rpartition(" - ")
            if mark and not key.endswith(("__MIN", "__MAX")):
                split.setdefault(run, {})[metric] = value
        for run, values in split.items():
            found.setdefault(run, []).append(shared | values)
    return found


def parse(text: str) -> tuple[list[Mapping[str, Any]], list[Note]]:
    r"""The rows of a table as records without their blank cells, and what was wrong with it.

    Raises:
        NotALog: there is no header or no row.

    >>> parse("epoch,loss,val_loss\r\r\n0,1.5,\r\r\n")[0]
    [{'epoch': '0', 'loss': '1.5'}]
    """
    # Text mode on Windows turns the writer's own \r\n into \r\r\n.
    lines = text.replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\r", "\n")
    first = next((line for line in lines.split("\n") if line.strip()), "")
    delimiter = delimiter_of(first)
    names: list[str] = []
    records: list[Mapping[str, Any]] = []
    odd = 0
    comma = delimiter == ";"
    try:
        for cells in csv.reader(io.StringIO(lines), delimiter=delimiter, skipinitialspace=True):
            if not any(cells):
                continue
            if not names:
                names = header(cells)
                continue
            if [cell.strip() for cell in cells] == names:
                continue  # a logger that appends writes its header again
            odd += len(cells) != len(names)
            pairs = zip(names, cells, strict=False)
            record = {n: c.replace(",", ".") if comma else c for n, c in pairs if n and c and not c.isspace()}
            if record:
                records.append(record)
    except csv.Error as error:
        raise NotALog(f"no table: {error}") from error
    if not names or not records:
        raise NotALog("a table without rows" if names else "no table: it has no header")
    return records, [Note("broken-lines", f"{counted(odd, 'row')} with more or fewer cells than the header")] if odd else []


def delimiter_of(line: str) -> str:
    """What separates the cells of a header line: the most frequent of comma, tab, semicolon and bar.

    >>> delimiter_of("step;loss;val,loss"), delimiter_of("loss")
    (';', ',')
    """
    return max(_DELIMITERS, key=line.count)


def header(cells: list[str]) -> list[str]:
    """Column names without padding; a column that only numbers the rows, as pandas writes it, gets none.

    >>> header(["", "  epoch", "train/box_loss "])
    ['', 'epoch', 'train/box_loss']
    """
    return ["" if cell.strip().lower().startswith("unnamed:") else cell.strip() for cell in cells]
