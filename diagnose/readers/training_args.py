"""The `training_args.bin` that a Trainer leaves beside its log: a pickle, read without running anything that it names.

A pickle may ask for any function to be called. Here whatever it names becomes an inert object that only remembers what it was
given, so that nothing is imported and nothing is run; torch is not needed either.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from diagnose.errors import NotALog
from diagnose.readers.files import read_bytes

#: Real files have about 7 kB, their pickle about 4 kB.
_LIMIT = 1 << 20
#: What a broken pickle or archive raises, whether it was cut off, changed or made to harm.
_BROKEN = (
    ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError, MemoryError, NameError,
    NotImplementedError, OSError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError, struct.error,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class _Inert:
    """Stands for everything that a pickle names: any class, any function, any instance."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.given = args
        self.state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> _Inert:
        made = super().__new__(cls)
        made.given, made.state = args, None
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> _Inert:
        return _Inert(*args)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle._Unpickler):
    """The unpickler written in Python: the one in C reserves as much memory as a file asks for."""

    def find_class(self, module: str, name: str) -> Any:
        return _Inert

    def persistent_load(self, pid: Any) -> Any:
        return None


def read(path: Path) -> dict[str, Any]:
    """The fields of the TrainingArguments, or of a subclass of it; enumerations by their value, other objects left out.

    Args:
        path: of a file that `torch.save` wrote.

    Raises:
        ReadError: there is no such file, or it may not be read.
        NotALog: it is none that torch wrote, is broken, or holds something else.
    """
    content = read_bytes(path, _LIMIT + 1)
    if len(content) > _LIMIT:
        raise NotALog("far larger than any training_args.bin")
    try:
        made = _Reader(BytesIO(_pickle(content))).load()
    except _BROKEN as error:
        raise NotALog(f"no training arguments that can be read: {type(error).__name__}") from error
    if not isinstance(made, _Inert) or not isinstance(made.state, Mapping):
        raise NotALog("a pickle, but not of training arguments")
    fields = {key: _value(value) for key, value in made.state.items() if isinstance(key, str)}
    found = {key: value for key, value in fields.items() if not isinstance(value, _Inert)}
    world = fields.get("distributed_state")
    if isinstance(world, _Inert) and isinstance(world.state, Mapping):
        found["world_size"] = world.state.get("num_processes")
    return found


def _pickle(content: bytes) -> bytes:
    """The pickle in an archive of torch."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        name = next((n for n in archive.namelist() if n.endswith("data.pkl")), None)
        if name is None:
            raise ValueError("an archive without data.pkl")
        with archive.open(name) as file:
            return file.read(_LIMIT)


def _value(value: Any) -> Any:
    """What an enumeration's member stands for, which was pickled as its class and its value; all else as it is."""
    if isinstance(value, _Inert) and value.state is None and len(value.given) == 1 and isinstance(value.given[0], str):
        return value.given[0]
    return value
