"""Guests in other people's training loops.

Each is loaded when it is first asked for: their hosts take seconds to import, and need not all be installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diagnose.errors import MissingExtraError

if TYPE_CHECKING:
    from diagnose.callbacks.curve_doctor import CurveDoctor as CurveDoctor
    from diagnose.callbacks.keras_doctor import KerasCurveDoctor as KerasCurveDoctor
    from diagnose.callbacks.lightning_doctor import LightningCurveDoctor as LightningCurveDoctor

__all__ = ["CurveDoctor", "KerasCurveDoctor", "LightningCurveDoctor"]

#: The module of each guest, what its host is imported by, and the extra that installs it. Torch is asked for beside
#: transformers, which without it hands out stand-ins that fail only when they are used.
_HOSTS = {
    "CurveDoctor": ("curve_doctor", ("torch", "transformers"), "train"),
    "LightningCurveDoctor": ("lightning_doctor", ("lightning",), "lightning"),
    "KerasCurveDoctor": ("keras_doctor", ("keras",), "keras"),
}


def __getattr__(name: str) -> Any:
    """Load a guest on first use.

    Raises:
        MissingExtraError: its host cannot be imported.
    """
    if name not in _HOSTS:
        raise AttributeError(f"module 'diagnose.callbacks' has no attribute {name!r}")
    module, hosts, extra = _HOSTS[name]
    try:
        for host in hosts:
            import_module(host)
        if extra == "train":
            from transformers import TrainerCallback  # noqa: F401 - only asked whether it is there
    except ImportError as error:
        needed = " and ".join(hosts)
        raise MissingExtraError(f"{name} needs {needed} ({error}): pip install 'curve-doctor[{extra}]'") from error
    return getattr(import_module(f"diagnose.callbacks.{module}"), name)
