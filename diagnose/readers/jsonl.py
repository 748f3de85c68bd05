"""JSON lines: LLaMA-Factory, Detectron2, MMDetection, DeiT and whatever a training loop prints as one object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnose.errors import NotALog
from diagnose.model import Note, Run, Setting
from diagnose.readers.files import counted, read_text
from diagnose.readers.records import runs_of
from diagnose.readers.settings import from_folder

#: Groups under which some loops nest their metrics; their members count as if they were written flat.
_GROUPS = {
    "train": "train/",
    "val": "val/",
    "valid": "val/",
    "validation": "val/",
    "eval": "eval/",
    "test": "test/",
    "metrics": "",
}


def read(path: Path, *, id: str, source: str) -> list[Run]:
    """The runs in a file of JSON lines. Broken lines are counted and left out.

    Args:
        path: of the file.
        id: see `Run`.
        source: see `Run`.

    Raises:
        ReadError: the file cannot be read.
        NotALog: no line of it holds a metric.
    """
    records, notes = parse(read_text(path))
    settings = planned_steps(records) | from_folder([path.parent], notes)
    return runs_of(records, id=id, source=source, settings=settings, notes=notes)


def planned_steps(records: Sequence[Mapping[str, Any]]) -> dict[str, Setting]:
    """How long the training was meant to be, which LLaMA-Factory repeats in each row; the last plan counts after a restart.

    >>> planned_steps([{"current_steps": 10, "total_steps": 750}])
    {'max_steps': 750}
    """
    total = records[-1].get("total_steps") if records and "current_steps" in records[-1] else None
    return {"max_steps": total} if isinstance(total, int) and total > 0 else {}


def parse(text: str) -> tuple[list[Mapping[str, Any]], list[Note]]:
    r"""The objects of a text, one a line, and what was wrong with it.

    Raises:
        NotALog: no line is an object.

    >>> parse('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')[1]
    [Note(kind='truncated', text='the last line is cut off and was left out', step=None)]
    """
    records: list[Mapping[str, Any]] = []
    broken: list[int] = []
    lines = text.splitlines()
    for i, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped:
            continue
        record = parse_line(stripped)
        if record is None:
            broken.append(i)
        else:
            records.append(record)
    if not records:
        raise NotALog("no line of it is a JSON object")
    if broken == [len(lines)] and not text.endswith("\n"):
        return records, [Note("truncated", "the last line is cut off and was left out")]
    if broken:
        text = f"{counted(len(broken), 'line')} left out: no JSON object, first in line {broken[0]}"
        return records, [Note("broken-lines", text)]
    return records, []


def parse_line(line: str) -> dict[str, Any] | None:
    """One line as a flat record; None when it is no JSON object.

    >>> parse_line('{"epoch": 1, "val": {"loss": 2.0}}')
    {'epoch': 1, 'val/loss': 2.0}
    """
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    for key in [k for k, v in record.items() if isinstance(v, dict) and k.lower() in _GROUPS]:
        group = record.pop(key)
        record |= {_GROUPS[key.lower()] + str(name): value for name, value in group.items()}
    return record
