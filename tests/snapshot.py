"""Compares a text with the file of that name in tests/snapshots. UPDATE_SNAPSHOTS=1 writes the files anew: read the diff."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "snapshots"
UPDATE = bool(os.environ.get("UPDATE_SNAPSHOTS"))


def check(name: str, text: str) -> None:
    path = FOLDER / name
    if UPDATE:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; UPDATE_SNAPSHOTS=1 writes it anew"
