"""Bytes and text of a file, or the reason why there are none: never a traceback, never a hang."""

from __future__ import annotations

import codecs
import re
import stat
from pathlib import Path

from diagnose.errors import NotALog, ReadError

#: The first line is fixed by the specification; a cut or mended pointer is one all the same.
_LFS_POINTER = re.compile(rb"\s*version https?://\S*(?:git-lfs|hawser)\S*\s|version \S+\r?\n(?:ext-[^\n]*\n)*oid sha256:")

#: Enough of a file to tell what it is.
HEAD_BYTES = 1 << 16


def read_bytes(path: Path, limit: int | None = None, skip: int = 0) -> bytes:
    """The content of a regular file.

    Args:
        path: of the file.
        limit: read no more bytes than this; all when None.
        skip: bytes at the beginning that are known already; nothing may follow them.

    Raises:
        ReadError: there is no such file, it may not be read, or it is a folder, a pipe or a device, which could block.
        NotALog: the file is empty, or a Git LFS pointer stands in its place.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ReadError("a folder where a file was expected")
        if not stat.S_ISREG(mode):
            raise ReadError("not a regular file but a pipe, socket or device")
        with path.open("rb") as file:
            file.seek(skip)
            content = file.read(-1 if limit is None else limit)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise ReadError(reason(error)) from error
    if skip:
        return content
    if not content:
        raise NotALog("the file is empty")
    if _LFS_POINTER.match(content):
        raise NotALog("a Git LFS pointer, not the file itself: run `git lfs pull`")
    return content


def reason(error: OSError | ValueError) -> str:
    """Why a path could not be read, in words.

    >>> reason(FileNotFoundError(2, "No such file or directory"))
    'no such file or folder'
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "no such file or folder"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    text = getattr(error, "strerror", None) or str(error)
    return f"cannot be read: {text[:1].lower()}{text[1:]}"


def decode(content: bytes) -> str:
    """Text of a log, whatever its encoding: UTF-8 with or without a mark, UTF-16 with one, else Latin-1.

    Raises:
        NotALog: the bytes are not text.

    >>> decode(codecs.BOM_UTF8 + b"loss"), decode("loss".encode("utf-16"))
    ('loss', 'loss')
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = content.decode("utf-16", errors="replace")
    else:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
    if "\0" in text:
        raise NotALog("a binary file, not a text log")
    return text


def counted(n: int, noun: str) -> str:
    """A number with its noun, for notes.

    >>> counted(1, "row"), counted(3, "row")
    ('1 row', '3 rows')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def read_text(path: Path, limit: int | None = None) -> str:
    """The text of a file; raises as `read_bytes` and `decode` do."""
    return decode(read_bytes(path, limit))
