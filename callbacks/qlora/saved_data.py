"""Data sets of the `datasets` library: folders that `save_to_disk` wrote, and names on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnose.callbacks.qlora.read_rows import SUFFIXES, Row, Rows
from diagnose.errors import TrainingInputError

if TYPE_CHECKING:
    from datasets import Dataset

#: What a validation split is called, the best first.
_VALIDATION = ("validation", "valid", "val", "dev", "eval", "test")


def is_saved(path: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def looks_like_a_path(name: str) -> bool:
    """Whether a name that is no file here was meant to be one, and not a name on the hub.

    >>> [looks_like_a_path(name) for name in ("train.jsonl", "./data", "a/b/c", "tatsu-lab/alpaca")]
    [True, True, True, False]
    """
    bare = name.removesuffix(".gz")
    return bare.endswith(SUFFIXES) or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name


def read_saved(path: Path, split: str) -> tuple[Rows, Rows | None]:
    """Read a folder that `save_to_disk` wrote.

    Args:
        path: the folder.
        split: the split that is wanted, where there are several.

    Returns:
        Its rows, and those of its validation split where it has one and another was wanted.

    Raises:
        TrainingInputError: it cannot be read.
    """
    from datasets import load_from_disk

    try:
        loaded = load_from_disk(str(path))
    except Exception as error:
        raise TrainingInputError(f"{path} is a damaged data set: {_line(error)}; save it again with save_to_disk") from error
    return _splits(str(path), loaded, split)


def read_hub(name: str, split: str) -> tuple[Rows, Rows | None]:
    """Read a data set of the hub, or of its local cache.

    Args:
        name: `name` or `name:configuration`.
        split: the split that is wanted, where there are several.

    Returns:
        As `read_saved`.

    Raises:
        TrainingInputError: there is none of that name, or the hub cannot be reached.
    """
    from datasets import load_dataset

    repository, _, configuration = name.partition(":")
    try:
        loaded = load_dataset(repository, configuration or None)
    except Exception as error:
        raise TrainingInputError(
            f"{name} is no file or folder here, and cannot be loaded from the hub ({_line(error)}): "
            "check the path; or the name and the network; or download it first and give its folder"
        ) from error
    return _splits(name, loaded, split)


def _splits(name: str, loaded: Any, split: str) -> tuple[Rows, Rows | None]:
    if not hasattr(loaded, "keys"):
        return _rows(name, loaded), None
    there = list(loaded.keys())
    wanted = _VALIDATION if split == "validation" else ("train",)
    found = next((known for known in wanted if known in there), there[0] if len(there) == 1 else None)
    if found is None:
        raise TrainingInputError(f"{name} has the splits {', '.join(there)}, but none called {' or '.join(wanted)}")
    other = next((known for known in _VALIDATION if known in there and known != found), None)
    own = _rows(f"{name} {other}", loaded[other], other) if split == "train" and other else None
    return _rows(name if len(there) == 1 else f"{name} {found}", loaded[found], found), own


def _rows(name: str, dataset: Dataset, split: str = "") -> Rows:
    short = Path(name).name
    return Rows([Row(f"{short} row {i}", dict(row)) for i, row in enumerate(dataset, start=1)], split=split)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
