"""`curve_doctor.json`, which CurveDoctor leaves beside a log: the settings, and what it saw that no log holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnose.errors import ReadError
from diagnose.model import Note
from diagnose.readers.files import read_text

FILE_NAME = "curve_doctor.json"
#: Larger ones are none of ours.
_LIMIT = 64 * 1024 * 1024

#: One observation: `step`, metrics by their names in a log, and `rows`, the indices of the training data that it was made of.
Observed = Mapping[str, Any]


def observed(folders: Sequence[Path]) -> list[Observed]:
    """What CurveDoctor saw step by step, from the first of these folders that holds its file, in the order of the steps.

    Returns:
        Empty where there is none, or it is broken.
    """
    for folder in folders:
        try:
            content = json.loads(read_text(folder / FILE_NAME, _LIMIT))
        except (ReadError, ValueError, RecursionError):
            continue
        found = content.get("observed") if isinstance(content, dict) else None
        rows = [row for row in found if _is_row(row)] if isinstance(found, list) else []
        return sorted(rows, key=lambda row: row["step"])
    return []


def note_of(row: Observed) -> Note | None:
    """The note on the rows of the training data that a step was made of; None where they are not known."""
    rows = row.get("rows")
    if not isinstance(rows, list) or not rows:
        return None
    step = int(row["step"])
    return Note("rows-of-step", f"step {step} was made of train_dataset rows {', '.join(map(str, rows))}", step)


def merged(rows: Sequence[Mapping[str, Any]], seen: Sequence[Observed]) -> list[Mapping[str, Any]]:
    """A log with what was seen in its place: before the first row of the same step or a later one.

    Args:
        rows: the log's; left as it is where a step is no number.
        seen: in the order of the steps.
    """
    steps = [row.get("step") for row in rows]
    if not seen or not all(isinstance(step, int) for step in steps):
        return list(rows)
    out: list[Mapping[str, Any]] = []
    at = 0
    for row, step in zip(rows, steps, strict=True):
        while at < len(seen) and seen[at]["step"] <= step:
            out.append(_logged(seen[at]))
            at += 1
        out.append(row)
    return [*out, *map(_logged, seen[at:])]


def _logged(row: Observed) -> Mapping[str, Any]:
    """What of it a log could hold."""
    return {key: value for key, value in row.items() if key != "rows"}


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("step"), int) and not isinstance(row.get("step"), bool)
