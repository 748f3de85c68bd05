"""TensorBoard event files: records, events and the scalars in them, every one and not a sample.

A file is a row of records: length (u64), its checksum (u32), an `Event` in protobuf, its checksum (u32). The checksums are
not verified, which would take longer than all the rest; records that are no Events are left out and counted.
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
from diagnose.readers.files import counted, read_bytes

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
        end: bytes up to the end of the last whole record, where reading goes on once the file has grown.
        n_bad: damaged records.
    """

    path: Path
    scalars: dict[str, Points] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    is_hparams: bool = False
    order: tuple[int, int, str] = (0, 0, "")
    process: str = ""
    end: int = 0
    n_bad: int = 0


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
    began, writer = _BEGAN.search(path.name), _WRITER.search(path.name)
    order = (int(began[1]) if began else 0, int(writer[2]) if writer else 0, path.name)
    found = EventFile(path, order=order, process=writer[1] if writer else "")
    if _add(found, read_bytes(path)) == 0:
        raise NotALog("no event file: its first record cannot be read")
    return found


def go_on(found: EventFile) -> None:
    """Add what was written to an event file since it was read.

    Args:
        found: as `read` gave it; more points are added to its lists.

    Raises:
        ReadError: the file cannot be read any more.
    """
    _add(found, read_bytes(found.path, skip=found.end))


def _add(found: EventFile, content: bytes) -> int:
    """Add the scalars and texts of more records; returns how many events could be read."""
    from google.protobuf.message import DecodeError  # here: only those who read event files wait for it
    from tensorboard.compat.proto import event_pb2

    parse = event_pb2.Event.FromString
    n = 0
    found.notes.clear()
    for record in _records(content, found):
        try:
            event = parse(record)
        except DecodeError:
            found.n_bad += 1
            continue
        n += 1
        for value in event.summary.value:
            # A million times over: the plain case first. A zero may also mean that the field is not set.
            number = value.simple_value
            if number == 0 and not value.HasField("simple_value"):
                other = _other(found, value)
                if other is None:
                    continue
                number = other
            points = found.scalars.get(value.tag)
            if points is None:
                points = found.scalars[value.tag] = ([], [], [])
            points[0].append(event.step)
            points[1].append(number)
            points[2].append(event.wall_time)
    if found.n_bad:
        found.notes.append(Note("corrupt", f"{counted(found.n_bad, 'damaged record')} left out"))
    return n


def _records(content: bytes, found: EventFile) -> Iterator[bytes]:
    """The records of a file, until it ends or is cut off."""
    at, end, begins = 0, len(content), found.end
    while at < end:
        if at + _HEADER + _FOOTER > end:
            found.notes.append(_CUT_OFF)
            return
        length = _LENGTH(content, at)[0]
        start = at + _HEADER
        at = start + length + _FOOTER
        if at > end:
            found.notes.append(_CUT_OFF)
            return
        found.end = begins + at
        yield content[start : start + length]


def _other(found: EventFile, value: Any) -> float | None:
    """The number in a summary value that is not a plain one; None when it holds none. Keeps the first text of a tag."""
    kind = value.WhichOneof("value")
    if kind == "tensor" and value.tensor.dtype != _STRING:
        return _scalar(value.tensor)
    if kind == "tensor" and value.tag not in found.texts and len(value.tensor.string_val) == 1:
        found.texts[value.tag] = value.tensor.string_val[0].decode("utf-8", errors="replace")
    if kind is None:
        found.is_hparams |= value.tag.startswith("_hparams_/")
    return None


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
