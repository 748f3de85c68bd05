"""Guests in other people's training loops.

`CurveDoctor` is loaded when it is first asked for: it needs torch and transformers, which take seconds to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnose.errors import MissingExtraError

if TYPE_CHECKING:
    from diagnose.callbacks.curve_doctor import CurveDoctor as CurveDoctor

__all__ = ["CurveDoctor"]


def __getattr__(name: str) -> Any:
    """Load `CurveDoctor` on first use.

    Raises:
        MissingExtraError: torch or transformers cannot be imported.
    """
    if name != "CurveDoctor":
        raise AttributeError(f"module 'diagnose.callbacks' has no attribute {name!r}")
    try:
        # Both, since transformers without torch hands out stand-ins that fail only when they are used.
        import torch  # noqa: F401 - only asked whether it is there
        from transformers import TrainerCallback  # noqa: F401 - likewise
    except ImportError as error:
        raise MissingExtraError(
            f"CurveDoctor needs torch and transformers ({error}): pip install 'curve-doctor[train]'"
        ) from error
    from diagnose.callbacks.curve_doctor import CurveDoctor

    return CurveDoctor
