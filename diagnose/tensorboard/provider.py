"""The runs that TensorBoard itself has loaded, for when it was not started on one folder: its logs may be anywhere.

TensorBoard keeps a random sample of 1,000 points a tag unless told otherwise, and a spike may not be in it. All that it has
is asked for, and a run of which it may have kept only a part carries a note that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from diagnose.errors import NotALog
from diagnose.model import Note, Run
from diagnose.readers import tensorboard
from diagnose.readers.events import EventFile
from diagnose.tensorboard.folder import Batch

#: Points a tag that TensorBoard keeps when it is not told a number.
DEFAULT_KEPT = 1000
#: More points than any log has: ask for all.
_ALL = 10**9
_SCALARS, _TEXT = "scalars", "text"
#: A folder in which no settings lie: those of a remote log cannot be looked for.
_NOWHERE = Path("/nonexistent")


class ProviderSource:
    """What TensorBoard's data provider holds.

    Args:
        provider: the `data_provider` of TensorBoard's context.
        kept: points a tag that it keeps; 0 for all.
    """

    def __init__(self, provider: Any, kept: int | None = None) -> None:
        self._provider = provider
        self._kept = DEFAULT_KEPT if kept is None else kept
        self._known: dict[str, tuple[object, Batch]] = {}

    name = "what TensorBoard has loaded"

    def batches(self) -> Iterator[Batch]:
        """Every run; those whose last points are the known ones are not read again.

        Yields:
            One run, or the several that one folder holds, at a time.
        """
        listed = self._provider.list_scalars(_context(), experiment_id="", plugin_name=_SCALARS)
        known: dict[str, tuple[object, Batch]] = {}
        for home, names in sorted(homes(listed).items()):
            stamp = tuple(
                (name, tag, series.max_step, series.max_wall_time)
                for name in sorted(names)
                for tag, series in sorted(listed[name].items())
            )
            before = self._known.get(home)
            if before is None or before[0] != stamp:
                before = (stamp, self._read(home, names))
            known[home] = before
            yield before[1]
        self._known = known

    def _read(self, home: str, names: Mapping[str, str]) -> Batch:
        from tensorboard.data import provider as data

        files = []
        read = self._provider.read_scalars(
            _context(),
            experiment_id="",
            plugin_name=_SCALARS,
            downsample=_ALL,
            run_tag_filter=data.RunTagFilter(runs=sorted(names)),
        )
        n_most = 0
        for name, prefix in names.items():
            file = EventFile(Path(name), texts=self._texts(name))
            for tag, points in read.get(name, {}).items():
                file.scalars[tag] = (
                    [int(p.step) for p in points],
                    [float(p.value) for p in points],
                    [float(p.wall_time) for p in points],
                )
                n_most = max(n_most, len(points))
            file.scalars = {tag: points for tag, points in file.scalars.items() if points[0]}
            files.append((file, prefix))
        try:
            runs = tensorboard.runs_of_files(files, id=_id(home), source=home, folder=_NOWHERE)
        except NotALog:
            return Batch(())
        if self._kept and n_most >= self._kept:
            runs = [_sampled(run, self._kept) for run in runs]
        return Batch(tuple(runs))

    def _texts(self, name: str) -> dict[str, str]:
        """The Trainer's arguments, which it logs as a text."""
        from tensorboard.data import provider as data

        wanted = data.RunTagFilter(runs=[name], tags=["args/text_summary"])
        read = self._provider.read_tensors(_context(), experiment_id="", plugin_name=_TEXT, downsample=1, run_tag_filter=wanted)
        found = {}
        for tag, points in read.get(name, {}).items():
            text = points[0].numpy.reshape(-1)[0] if points and points[0].numpy.size else b""
            found[tag] = text.decode("utf-8", errors="replace") if isinstance(text, bytes) else str(text)
        return found


def homes(names: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """TensorBoard's runs by the training they belong to: name of the training to its folders, each with its tags' prefix.

    >>> homes({"a/train": 0, "a/validation": 0, "b": 0})
    {'a': {'a/train': 'train/', 'a/validation': 'validation/'}, 'b': {'b': ''}}
    """
    found: dict[str, dict[str, str]] = {}
    for name in names:
        path = PurePosixPath(name)
        prefix = tensorboard.SIDES.get(path.name.lower())
        if prefix is None:
            found.setdefault(path.as_posix(), {})[name] = ""
        else:
            found.setdefault(path.parent.as_posix(), {})[name] = prefix
    return found


def _context() -> Any:
    """What providers want to know of the asker: nobody in particular."""
    from tensorboard import context

    return context.RequestContext()


def _id(home: str) -> str:
    return "run" if home == "." else home


def _sampled(run: Run, kept: int) -> Run:
    text = (
        f"TensorBoard keeps a random sample of {kept} points a tag, so spikes may be missing here: start it with "
        "--logdir FOLDER, or with --samples_per_plugin scalars=0"
    )
    return replace(run, notes=(*run.notes, Note("sampled", text)))
