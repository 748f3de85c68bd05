"""Event files of one folder to Runs: which files continue each other, which begin anew, and what their tags mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from diagnose.errors import NotALog
from diagnose.model import Note, Row, Run, Series, Setting
from diagnose.names import EPOCH, LEARNING_RATE, TRAIN_LOSS
from diagnose.readers.events import EventFile, Points
from diagnose.readers.keys import resolve
from diagnose.readers.segments import FAR, segments
from diagnose.readers.settings import from_arguments, from_folder
from diagnose.readers.total import with_total
from diagnose.rows import build_run, run_of_columns

#: Folders under a run's own that hold one side of it each, as Keras and estimators make them, with the prefix of their tags.
SIDES = {
    "train": "train/", "training": "train/", "validation": "validation/", "val": "validation/", "valid": "validation/",
    "eval": "validation/", "eval_0": "validation/", "test": "test/",
}  # fmt: skip
#: The text under which the Trainer logs its arguments: a file that has it begins a training.
_ARGUMENTS = "args/text_summary"
#: What the Trainer logs once at the end; `train/train_loss` is then an average of the run.
_CLOSING = "train/train_runtime"


#: Steps beyond it can only come from a damaged file.
_MOST = 2**62


@dataclass
class _Group:
    """The event files of one run, in order."""

    files: list[EventFile]
    points: dict[str, Points] = field(default_factory=dict)

    def take(self, file: EventFile, points: Mapping[str, Points]) -> None:
        """Add a file's points behind those that are there."""
        self.files.append(file)
        for tag, added in points.items():
            steps, values, wall_s = self.points.setdefault(tag, ([], [], []))
            steps.extend(added[0])
            values.extend(added[1])
            wall_s.extend(added[2])


def runs_of_files(files: Iterable[tuple[EventFile, str]], *, id: str, source: str, folder: Path) -> list[Run]:
    """The runs in the event files of a folder and of the folders beside it that hold the other side.

    Args:
        files: each with the prefix of its tags: the empty string for the folder's own.
        id: of the first run; further ones get `#2`, `#3` …
        source: see `Run`.
        folder: where settings may lie.

    Raises:
        NotALog: no file holds a metric.
    """
    groups: list[_Group] = []
    tags: set[str] = set()
    for file, prefix in sorted(files, key=lambda pair: pair[0].order):
        points = {_tag(prefix, tag): p for tag, p in file.scalars.items() if max(p[0]) < _MOST and min(p[0]) > -_MOST}
        points = _without_closing(points)
        tags |= set(file.scalars)
        home = _home(groups, file, points)
        if home is None:
            groups.append(home := _Group([]))
        home.take(file, points)
    runs = [with_total(run) for group in groups for run in _runs(group, source, folder)]
    if not runs:
        told = f"only {', '.join(sorted(tags)[:6])}" if tags else "no scalars, only graphs, texts or images"
        raise NotALog(f"no training curve in it: {told}")
    note = Note("mixed-runs", f"the folder's event files hold {len(runs)} runs, as their steps start again")
    several = len(groups) > 1 and len(runs) > 1
    return [
        replace(r, id=id if k == 1 else f"{id}#{k}", notes=(*r.notes, note) if several else r.notes)
        for k, r in enumerate(runs, 1)
    ]


def _tag(prefix: str, tag: str) -> str:
    """A tag with its folder's side in front; Keras's `epoch_loss` then is plainly the loss."""
    if prefix and tag.startswith(("train/", "val/", "eval/", "validation/")):
        return tag
    return prefix + (tag.removeprefix("epoch_") if prefix else tag)


def _without_closing(points: dict[str, Points]) -> dict[str, Points]:
    """Leave out the Trainer's summary at the end: its loss is an average, and its other tags are no metrics."""
    if _CLOSING not in points:
        return points
    return {tag: p for tag, p in points.items() if tag not in ("train/train_loss", "train/total_flos", _CLOSING)}


def _home(groups: Sequence[_Group], file: EventFile, points: Mapping[str, Points]) -> _Group | None:
    """The group that a file belongs to, or None when it begins a new run.

    A file belongs to the latest group of its own process, else to the latest of all. It begins a new run when its steps
    start at or before that group's first, or when it starts as a training does from scratch, one logging interval after 0,
    and logs more seldom than the group did. A file with other tags than the group's is the other half of the same run.
    """
    if not groups:
        return None
    same = [g for g in groups if file.process and any(f.process == file.process for f in g.files)]
    group = (same or groups)[-1]
    shared = [tag for tag in points if tag in group.points and tag != "epoch" and tag != "train/epoch"]
    begins = _ARGUMENTS in file.texts
    if begins:  # a resume goes on with the training, not only with its evaluation
        shared = [tag for tag in shared if _is_train(tag)]
    if not shared:
        return None if begins else group
    first = min(points[tag][0][0] for tag in shared)
    known_first = min(group.points[tag][0][0] for tag in shared)
    known_last = max(steps[-1] for steps, _, _ in group.points.values())
    only_eval = not any(_is_train(tag) for tag in points)
    if first > known_last or (first == known_last and only_eval and any(_is_train(tag) for tag in group.points)):
        return group
    if first <= known_first:
        return None
    own, known = (min(_gap(p[tag]) for tag in shared) for p in (points, group.points))
    return None if own > known and first <= own else group


def _is_train(tag: str) -> bool:
    name = resolve({tag: 1})[0].get(tag)
    return name is not None and name.startswith("train/") and name != LEARNING_RATE


def _gap(points: Points) -> int:
    """Steps between the first two points that differ; endless for a single one."""
    steps = points[0]
    return next((s - steps[0] for s in steps if s > steps[0]), 2**62)


def _runs(group: _Group, source: str, folder: Path) -> list[Run]:
    """The runs of a group: one, unless a single file tells several."""
    names, key_notes = resolve({tag: len(points[0]) for tag, points in group.points.items()})
    columns = {name: group.points[tag] for tag, name in names.items() if name is not None}
    if not columns.keys() - {EPOCH, LEARNING_RATE}:
        return []
    arguments = next((f.texts[_ARGUMENTS] for f in group.files if _ARGUMENTS in f.texts), "{}")
    settings_notes: list[Note] = []
    settings: dict[str, Setting] = from_arguments(arguments) | from_folder([folder], settings_notes)
    notes = [*key_notes, *settings_notes, *dict.fromkeys(note for f in group.files for note in f.notes)]
    notes += _place_evaluations(columns)
    if all(_ascends(steps) for steps, _, _ in columns.values()):
        plain = {name: (steps, values) for name, (steps, values, _) in columns.items()}
        run = run_of_columns(plain, id="", source=source, settings=settings, notes=notes)
        return [replace(run, clock=_clock(columns, run))]
    parts, part_notes = segments(_rows(columns))
    notes += part_notes
    if len(parts) > 1:
        notes.append(Note("mixed-runs", f"the event files hold {len(parts)} runs, as their steps start again"))
    runs = [build_run(part, id="", source=source, settings=settings, notes=notes) for part in parts]
    # Steps of several runs in one file are the same ones, so their times cannot be told apart by step.
    return [replace(run, clock=_clock(columns, run)) for run in runs] if len(runs) == 1 else runs


def _clock(columns: Mapping[str, Points], run: Run) -> Series:
    """When each of a run's steps was logged; of a step that a resumed training logged again, the later time."""
    steps = np.concatenate([np.asarray(points[0], dtype=np.int64) for points in columns.values()])
    wall_s = np.concatenate([np.asarray(points[2], dtype=np.float64) for points in columns.values()])
    order = np.lexsort((wall_s, steps))
    steps, wall_s = steps[order], wall_s[order]
    last = np.append(np.flatnonzero(np.diff(steps)), steps.size - 1)
    steps, wall_s = steps[last], wall_s[last]
    kept = np.isfinite(wall_s) & np.isin(steps, np.concatenate([series.step for series in run.series.values()]))
    steps, wall_s = steps[kept], np.maximum.accumulate(wall_s[kept])
    return Series("clock", steps, wall_s, np.ones_like(steps))


def _ascends(steps: Sequence[float]) -> bool:
    return all(a <= b for a, b in pairwise(steps))


def _place_evaluations(columns: dict[str, Points]) -> list[Note]:
    """Put evaluations that were logged by epoch among training losses that were logged by step, as the clock tells.

    Many loops write `add_scalar("train", loss, step)` and `add_scalar("val", loss, epoch)`: ten evaluations would all seem to
    lie in the first ten steps. Their own clock says between which training steps they were made.
    """
    train = columns.get(TRAIN_LOSS)
    placed = []
    for name in [name for name in columns if name.startswith("eval/")]:
        steps, values, wall_s = columns[name]
        if train is None or len(steps) < 2 or any(b - a != 1 for a, b in pairwise(steps)):  # noqa: PLR2004 - two points, to see a distance
            continue
        before = np.searchsorted(np.asarray(train[2]), np.asarray(wall_s), side="right") - 1
        at = [train[0][i] if i >= 0 else 0 for i in before.tolist()]
        if _ascends(train[2]) and len(set(at)) == len(at) and at[-1] > FAR * (steps[-1] + 1):
            columns[name] = (at, values, wall_s)
            placed.append(name)
    text = f"{', '.join(placed)} were logged by epoch: put at the training steps at which they were written"
    return [Note("steps-by-epoch", text)] if placed else []


def _rows(columns: Mapping[str, Points]) -> list[Row]:
    """The points of all metrics as rows, in the order in which they were written."""
    names = [name for name, (steps, _, _) in columns.items() for _ in steps]
    steps = [step for points in columns.values() for step in points[0]]
    values = [value for points in columns.values() for value in points[1]]
    # Within one second's clock the order inside a file decides, hence a stable sort.
    order = np.argsort(np.asarray([s for points in columns.values() for s in points[2]]), kind="stable").tolist()
    rows: list[Row] = []
    held: dict[str, float] = {}
    epoch: float | None = None
    at: int | None = None
    for i in order:
        name = names[i]
        if steps[i] != at or name in held:
            if at is not None and held:
                rows.append(Row(at, held, epoch))
            held, epoch, at = {}, None, steps[i]
        if name == EPOCH:
            epoch = values[i]
        else:
            held[name] = values[i]
    if at is not None and held:
        rows.append(Row(at, held, epoch))
    return rows
