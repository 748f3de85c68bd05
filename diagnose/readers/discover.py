"""Every run below a path: puts together what belongs to one run, names the runs, and says what was skipped."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from diagnose.errors import NotALog, ReadError
from diagnose.model import Note, Run
from diagnose.readers import events, jsonl, table, tensorboard, trainer_state
from diagnose.readers.files import reason
from diagnose.readers.same import told_once
from diagnose.readers.sniff import LOG_NAMES, format_of
from diagnose.readers.tree import Error, Files, is_checkpoint, walk

#: What a file that was named outright is taken for when its content does not tell.
_BY_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "table", ".tsv": "table", ".json": "state"}
#: Reads an event file; one that remembers what it has read may stand in for the plain one.
EventReader = Callable[[Path], events.EventFile]
_KNOWN = "trainer_state.json, TensorBoard event files, JSON lines, or a table with a column of losses"


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was not read, and why.

    Args:
        path: as the user gave it, joined with the rest.
        reason: in words.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reading:
    """All that was found below some paths.

    Args:
        runs: with ids that are unique within the reading.
        skipped: what looks like a log but gave no run.
    """

    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]


@dataclass
class Found:
    """What one argument gave: runs, and files that gave none with the error that says why."""

    runs: list[Run] = field(default_factory=list)
    errors: list[Error] = field(default_factory=list)


def find(root: Path) -> Found:
    """Every run at one path, a file or a folder. Never raises for what a file holds."""
    found = Found()
    try:
        is_folder = stat.S_ISDIR(root.stat().st_mode)
    except (OSError, ValueError) as error:
        found.errors.append((root, ReadError(reason(error))))
        return found
    if not is_folder:
        _read_file(root, found)
        return found
    found = find_below(root, root)
    if not found.runs and not found.errors:
        found.errors.append((root, NotALog("no training log in this folder or below it")))
    return found


def find_below(top: Path, root: Path, *, is_flat: bool = False, read_events: EventReader = events.read) -> Found:
    """Every run in a part of a tree.

    Args:
        top: the folder to begin at. Nothing above it may belong to one of its runs.
        root: the folder that the user named: `top` itself, or one above it; runs are called by their path below it.
        is_flat: look at no folder below `top`.
        read_events: reads an event file.
    """
    found = Found()
    tree = dict(islice(walk(top, found.errors), 1 if is_flat else None))
    states: dict[Path, list[Path]] = {}
    sides = {child for folder in tree for child in (*_side_folders(folder, tree), *_curve_folders(folder, tree, read_events))}
    for folder, files in tree.items():
        for path in files.states:
            home = folder.parent if is_checkpoint(folder.name) and folder != root else folder
            states.setdefault(home, []).append(path)
    told: dict[Path, list[Run]] = {}
    for folder, files in tree.items():
        own: list[Run] = []
        if folder in states:
            own += _read_states(folder, states[folder], root, found)
        for path, kind in files.others:
            own += _read_other(path, kind, root, found)
        if folder not in sides:
            own += _read_events(folder, tree, root, found, read_events)
        # The Trainer puts its event files into a folder below the one that has its state.
        home = next((above for above in folder.parents if above in states), folder)
        told.setdefault(home if folder not in states else folder, []).extend(own)
    found.runs = [run for runs in told.values() for run in told_once(runs)]
    return found


def _side_folders(folder: Path, tree: dict[Path, Files]) -> dict[Path, str]:
    """Folders right below that tell one side of the run, with the prefix of their tags."""
    below = {child: tensorboard.SIDES.get(child.name.lower()) for child in tree[folder].folders if child in tree}
    return {child: prefix for child, prefix in below.items() if prefix is not None and tree[child].events}


def _curve_folders(folder: Path, tree: dict[Path, Files], read_events: EventReader) -> dict[Path, tuple[str, str]]:
    """Folders right below that hold one curve each, as `add_scalars` makes them, with its tag and the curve's full name.

    `add_scalars("Loss", {"train": …, "val": …})` writes the tag `Loss` into the folders `Loss_train` and `Loss_val`.
    """
    found: dict[Path, tuple[str, str]] = {}
    for child in tree[folder].folders if tree[folder].events else []:
        if child.name.lower() in tensorboard.SIDES or child not in tree or len(tree[child].events) != 1:
            continue
        try:
            tags = list(read_events(tree[child].events[0]).scalars)
        except ReadError:
            continue  # told when the folder is read for itself
        stem = re.sub(r"[/ ]", "_", tags[0]) + "_" if len(tags) == 1 else ""
        if stem and child.name.startswith(stem):
            found[child] = (tags[0], f"{tags[0]}/{child.name.removeprefix(stem)}")
    return found


def _read_file(path: Path, found: Found) -> None:
    """Read a file that was named outright."""
    try:
        kind = format_of(path) or _BY_SUFFIX.get(path.suffix.lower())
        if kind is None:
            raise NotALog(f"no log format that is known: expected {_KNOWN}")
        name = path.name if "tfevents" in path.name else path.stem
        if kind == "events":
            pair = (events.read(path), tensorboard.SIDES.get(path.parent.name.lower(), ""))
            found.runs += tensorboard.runs_of_files([pair], id=name, source=path.as_posix(), folder=path.parent)
        else:
            found.runs += _runs(path, kind, name, [path.parent])
    except ReadError as error:
        found.errors.append((path, error))


def _runs(path: Path, kind: str, id: str, folders: Sequence[Path]) -> list[Run]:
    """The runs of a file that is a log by itself."""
    source = path.as_posix()
    if kind == "jsonl":
        return jsonl.read(path, id=id, source=source)
    if kind == "table":
        return table.read(path, id=id, source=source)
    return trainer_state.to_runs(trainer_state.load(path), id=id, source=source, folders=folders)


def _read_other(path: Path, kind: str, root: Path, found: Found) -> list[Run]:
    """The runs of a file in a folder that is a log by itself."""
    whole = path.name.lower() in LOG_NAMES
    try:
        return _runs(path, kind, run_id(path.parent if whole else path, root), [path.parent])
    except ReadError as error:
        found.errors.append((path, error))
        return []


def _read_states(folder: Path, paths: Sequence[Path], root: Path, found: Found) -> list[Run]:
    """The runs that an output folder and its checkpoints tell: the longest history, and those that are not part of it."""
    runs: list[Run] = []
    states = []
    for path in paths:
        try:
            states.append(trainer_state.load(path))
        except ReadError as error:
            found.errors.append((path, error))
    latest = sorted({state.path.parent for state in states}, key=_number, reverse=True)
    for k, (state, shorter) in enumerate(trainer_state.families(states)):
        own = state.path.parent
        notes = []
        if shorter:
            told = ", ".join(sorted((s.path.parent.name for s in shorter), key=lambda n: _number(Path(n))))
            notes.append(Note("merged", f"shorter histories of the same run left out: {told}"))
        try:
            runs += trainer_state.to_runs(
                state,
                id=run_id(folder if k == 0 else own, root),
                source=state.path.as_posix(),
                folders=[folder, own, *latest] if k == 0 else [own, folder],
                notes=notes,
            )
        except ReadError as error:
            found.errors.append((state.path, error))
    return runs


def _number(folder: Path) -> int:
    """The step in a checkpoint folder's name; -1 when it has none."""
    digits = re.search(r"(\d+)$", folder.name)
    return int(digits[1]) if digits else -1


def _read_events(folder: Path, tree: dict[Path, Files], root: Path, found: Found, read_events: EventReader) -> list[Run]:
    """The runs in the event files of a folder, together with those of its sides."""
    sides = _side_folders(folder, tree)
    own_prefix = tensorboard.SIDES.get(folder.name.lower(), "") if folder == root else ""
    paths = [(path, own_prefix) for path in tree[folder].events]
    paths += [(path, prefix) for side, prefix in sides.items() for path in tree[side].events]
    curves = _curve_folders(folder, tree, read_events)
    paths += [(tree[child].events[0], "") for child in curves]
    files, empty = [], []
    for path, prefix in paths:
        try:
            file = read_events(path)
        except ReadError as error:
            found.errors.append((path, error))
            continue
        if path.parent in curves and path.parent != folder:
            tag, full = curves[path.parent]
            file = replace(file, scalars={full: file.scalars[tag]})
        files.append((file, prefix))
        if not file.scalars and not file.is_hparams and not path.name.endswith(".profile-empty"):
            empty.append(path)
    if not files:
        return []
    try:
        runs = tensorboard.runs_of_files(files, id=run_id(folder, root), source=folder.as_posix(), folder=folder)
    except ReadError as error:
        if not all(file.is_hparams and not file.scalars for file, _ in files):
            found.errors.append((files[0][0].path if len(files) == 1 else folder, error))
        return []
    if empty:
        text = f"no scalars in {len(empty)} of its {len(files)} event files, only graphs, texts or images"
        found.errors.append((empty[0] if len(empty) == 1 else folder, NotALog(text)))
    return runs


def run_id(path: Path, root: Path) -> str:
    """A run's name: its path below the argument without `.json`, or the argument's own name.

    >>> run_id(Path("outputs/lora-a"), Path("outputs")), run_id(Path("outputs"), Path("outputs"))
    ('lora-a', 'outputs')
    >>> run_id(Path("curves/dev/000cb4.json"), Path("curves/dev"))
    '000cb4'
    """
    below = path.relative_to(root).as_posix().removesuffix(".json")
    own = root.name if root.name not in ("", "..") else root.resolve().name
    return (own or "run") if below == "." else below


def with_unique_ids(runs: Iterable[Run]) -> list[Run]:
    """The runs, later ones renamed where an earlier one has the name."""
    taken: set[str] = set()
    named = []
    for run in runs:
        name, base, k = run.id, re.sub(r"#\d+$", "", run.id), 2
        while name in taken:
            name, k = f"{base}#{k}", k + 1
        taken.add(name)
        named.append(run if name == run.id else replace(run, id=name))
    return named
