"""Event files as TensorBoard's own record writer frames them, with clock, process and host chosen by the test."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

#: When the first file of a test was begun, in seconds.
BEGAN = 1_700_000_000


def scalar(tag: str, step: int, value: float, at: float = 0.0) -> event_pb2.Event:
    """One point as torch and the Trainer write it."""
    summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)])
    return event_pb2.Event(step=step, wall_time=BEGAN + at, summary=summary)


def tensor(tag: str, step: int, at: float = 0.0, plugin: str = "scalars", **fields: Any) -> event_pb2.Event:
    """One point as TensorFlow 2 writes it, the number in a tensor."""
    proto = tensor_pb2.TensorProto(**fields)
    metadata = summary_pb2.SummaryMetadata(plugin_data={"plugin_name": plugin})
    summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, tensor=proto, metadata=metadata)])
    return event_pb2.Event(step=step, wall_time=BEGAN + at, summary=summary)


def text(tag: str, content: str) -> event_pb2.Event:
    """A text, as the Trainer writes its arguments."""
    return tensor(f"{tag}/text_summary", 0, plugin="text", dtype=7, string_val=[content.encode()])


def write_events(
    folder: Path, events: Iterable[event_pb2.Event], *, began: int = 0, process: int = 100, number: int = 0, v2: bool = False
) -> Path:
    """A file of these events behind the record that names the version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{BEGAN + began}.host.{process}.{number}{'.v2' if v2 else ''}"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        version = event_pb2.Event(wall_time=BEGAN + began, file_version="brain.Event:2")
        for event in (version, *events):
            writer.write(event.SerializeToString())
        writer.flush()
    return path
