"""TensorBoard event files: records, events and the scalars in them, every one and not a sample.

A file is a row of records: length (u64), its checksum (u32), an `Event` in protobuf, its checksum (u32). The checksums are
not verified, which would take longer than all the rest; a record that is no Event ends the reading with a note.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.errors import NotALog
from diagnose.model import Note
from diagnose.readers.files import read_bytes

_CUT_OFF = Note("truncated", "the last record is cut off: the file was still being written, or the run died")
_LENGTH = struct.Struct("<Q").unpack_from
_HEADER, _FOOTER = 12, 4
#: `events.out.tfevents.<seconds>.<host>.<pid>.<number>`, with `.v2` behind it when TensorFlow 2 wrote it.
#: Older writers and tensorboardX end the name at the host.
_BEGAN = re.compile(r"tfevents\.(\d{9,11})(?!\d)")
_WRITER = re.compile(r"\.(\d+)\.(\d+)(?:\.v2)?$")
#: struct format of a scalar's bytes by TensorFlow's number of its type.
_FORMATS = {1: "<f", 2: "<d", 3: "<i", 4: "<B", 5: "<h", 6: "<b", 9: "<q", 10: "<?", 17: "<H", 19: "<e", 22: "<I", 23: "<Q"}
_BFLOAT16, _HALF, _STRING = 14, 19, 7
_VALUE_FIELDS = ("float_val", "double_val", "int_val", "int64_val", "bool_val", "uint32_val", "uint64_val")

#: The points of a tag: steps, values, and seconds at which they were written.
Points = tuple[list[int], list[float], list[float]]


@dataclass
class EventFile:
    """What one file holds.

    Attributes:
        path: of the file.
        scalars: tag to its points, in the order of writing.
        texts: tag to the first text logged under it.
        notes: what was wrong with the file.
        is_hparams: whether it only describes a session for the hparams plugin.
        order: sorts files by when they were begun.
        process: of the writer, as far as the file's name tells.
    """

    path: Path
    scalars: dict[str, Points] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    is_hparams: bool = False
    order: tuple[int, int, str] = (0, 0, "")
    process: str = ""


def is_event_file(head: bytes) -> bool:
    """Whether a file begins as an event file does: with a short record that names the version.

    >>> is_event_file(b"{}"), is_event_file(bytes(21) + b"brain.Event:2")
    (False, True)
    """
    return b"brain.Event:" in head[:64]


def read(path: Path) -> EventFile:
    """Every scalar of an event file.

    Raises:
        ReadError: the file cannot be read.
        NotALog: it is no event file.
    """
    content = read_bytes(path)
    from google.protobuf.message import DecodeError  # here: only those who read event files wait for it
    from tensorboard.compat.proto import event_pb2

    began, writer = _BEGAN.search(path.name), _WRITER.search(path.name)
    order = (int(began[1]) if began else 0, int(writer[2]) if writer else 0, path.name)
    found = EventFile(path, order=order, process=writer[1] if writer else "")
    parse = event_pb2.Event.FromString
    n = 0
    try:
        for record in _records(content, found):
            event = parse(record)
            n += 1
            for value in event.summary.value:
                _take(found, value, event.step, event.wall_time)
    except DecodeError:
        found.notes.append(Note("corrupt", f"record {n + 1} is damaged: what follows it was not read"))
    if n == 0:
        raise NotALog("no event file: its first record cannot be read")
    return found


def _records(content: bytes, found: EventFile) -> Iterator[bytes]:
    """The records of a file, until it ends or is cut off."""
    at, end = 0, len(content)
    while at < end:
        if at + _HEADER + _FOOTER > end:
            found.notes.append(
                Note("truncated", "the last record is cut off: the file was still being written, or the run died")
            )
            return
        length = _LENGTH(content, at)[0]
        start = at + _HEADER
        at = start + length + _FOOTER
        if at > end:
            found.notes.append(
                Note("truncated", "the last record is cut off: the file was still being written, or the run died")
            )
            return
        yield content[start : start + length]


def _take(found: EventFile, value: Any, step: int, wall_s: float) -> None:
    """Add one summary value, if it is a scalar, or a text that is the first under its tag."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        number = value.simple_value
    elif kind == "tensor":
        tensor = value.tensor
        if tensor.dtype == _STRING:
            if value.tag not in found.texts and len(tensor.string_val) == 1:
                found.texts[value.tag] = tensor.string_val[0].decode("utf-8", errors="replace")
            return
        scalar = _scalar(tensor)
        if scalar is None:
            return
        number = scalar
    else:
        found.is_hparams |= value.tag.startswith("_hparams_/")
        return
    points = found.scalars.get(value.tag)
    if points is None:
        points = found.scalars[value.tag] = ([], [], [])
    points[0].append(step)
    points[1].append(number)
    points[2].append(wall_s)


def _scalar(tensor: Any) -> float | None:
    """The number in a tensor of one element; None for any other tensor."""
    if math.prod(dim.size for dim in tensor.tensor_shape.dim) != 1:
        return None
    content = tensor.tensor_content
    if content:
        if tensor.dtype == _BFLOAT16 and len(content) == 2:  # noqa: PLR2004 - two bytes, by its definition
            return float(struct.unpack("<f", b"\0\0" + content)[0])
        code = _FORMATS.get(tensor.dtype)
        return float(struct.unpack(code, content)[0]) if code and struct.calcsize(code) == len(content) else None
    if tensor.half_val:  # sixteen bits in an integer, for both kinds of half precision
        bits = struct.pack("<H", tensor.half_val[0] & 0xFFFF)
        whole = struct.unpack("<e", bits) if tensor.dtype == _HALF else struct.unpack("<f", b"\0\0" + bits)
        return float(whole[0])
    for name in _VALUE_FIELDS:
        if values := getattr(tensor, name):
            return float(values[0])
    # protobuf leaves out what is zero
    return 0.0 if tensor.dtype in _FORMATS else None
