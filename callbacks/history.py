"""What a training has logged, and what was seen of it step by step, before the doctor came to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnose.model import Row
from diagnose.readers.own_file import Observed, merged, observed
from diagnose.rows import number, row_from_log


def rows_of(log_history: Sequence[Mapping[str, Any]], seen: Sequence[Observed]) -> Iterator[Row]:
    """The Trainer's log as rows, with what was seen beside it in its place."""
    for log in merged(log_history, seen):
        row = row_from_log(log, int(number(log.get("step")) or 0))
        if row is not None:
            yield row


def seen_before(args: Any, state: Any) -> list[dict[str, Any]]:
    """What was seen step by step before the checkpoint that a training goes on from, and that it does go on.

    Args:
        args: `TrainingArguments`.
        state: the `TrainerState`, whose step is the checkpoint's.

    Returns:
        Empty for a training that begins.
    """
    if not state.global_step:
        return []
    folder = Path(args.output_dir)
    rows = observed([folder / f"checkpoint-{state.global_step}", folder])
    return [*(dict(row) for row in rows if row["step"] <= state.global_step), {"step": state.global_step, "resumed": 1.0}]
