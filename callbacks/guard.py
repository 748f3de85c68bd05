"""Isolation: what goes wrong in a hook of ours is told once and never reaches the training."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, cast

from diagnose.callbacks.output import say

_log = logging.getLogger("diagnose")


class Guest(Protocol):
    """What the guard needs of a callback: a place to remember that it has failed."""

    failed: bool


_P = ParamSpec("_P")
_T = TypeVar("_T")


def guarded(hook: Callable[_P, _T]) -> Callable[_P, _T | None]:
    """Catch a hook's own exceptions: the Trainer would end the training for them.

    The first one of a run is told in one line; all go to the logger `diagnose` with their traceback, at level DEBUG.

    Args:
        hook: a method of a Guest.

    Returns:
        The same method, which returns None where it failed.
    """

    @functools.wraps(hook)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        try:
            return hook(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a bug of ours, a full disk or a strange model must not end a training
            tell_failure(cast(Guest, args[0]), hook.__name__, error)
            return None

    return call


def tell_failure(guest: Guest, name: str, error: Exception) -> None:
    """Tell of an exception, if it is the first of this run: call it from within the `except`."""
    _log.debug("%s failed", name, exc_info=True)
    if not guest.failed:
        guest.failed = True
        told = f"{type(error).__name__}: {error}"
        say(f"curve-doctor: {name.strip('_')} failed ({told}); the training goes on")
