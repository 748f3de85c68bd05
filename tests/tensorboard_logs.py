"""Log folders as a Trainer writes them for TensorBoard, made from recorded curves: for the tests of the view and its pictures.

python tests/tensorboard_logs.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from event_files import scalar, text, write_events

from diagnose.model import Run
from diagnose.readers import read

RECORDED = Path(__file__).parent.parent / "fixtures" / "recorded"
#: Seconds that a step takes.
STEP_S = 2.5
_TAGS = {"train/lr": "train/learning_rate", "epoch": "train/epoch"}


def events_of(run: Run, *, after: int = 0, until: int | None = None) -> Iterator[Any]:
    """The run's points as the Trainer's own TensorBoard callback logs them, step by step."""
    settings = {key: value for key, value in run.settings.items() if value is not None}
    if "num_train_epochs" in settings:
        settings.pop("max_steps", None)  # it would outweigh the epochs
    if not after:
        yield text("args", json.dumps(settings))
    for row in run.rows():
        if row.step <= after or (until is not None and row.step > until):
            continue
        for name, value in row.values.items():
            yield scalar(_TAGS.get(name, name), row.step, value, row.step * STEP_S)
        if row.epoch is not None:
            yield scalar("train/epoch", row.step, row.epoch, row.step * STEP_S)


def recorded(name: str) -> Run:
    return read(RECORDED / f"{name}.json")[0]


def write_recorded(root: Path, names: Iterable[str] | None = None) -> None:
    """One folder with an event file for each recorded curve."""
    for name in names or sorted(path.stem for path in RECORDED.glob("*.json")):
        write_events(root / name, events_of(recorded(name)))


if __name__ == "__main__":
    write_recorded(Path(sys.argv[1]))
