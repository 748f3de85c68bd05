"""Curve Doctor: a doctor for training curves.

The callbacks are loaded when they are first asked for, since they need their hosts: everything else works without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diagnose.callbacks import CurveDoctor as CurveDoctor
    from diagnose.callbacks import KerasCurveDoctor as KerasCurveDoctor
    from diagnose.callbacks import LightningCurveDoctor as LightningCurveDoctor
    from diagnose.doctor import Doctor as Doctor
    from diagnose.examination import Examination as Examination
    from diagnose.examination import examine as examine
    from diagnose.readers import read as read

__version__ = "0.1.0"

#: Public names and the module each one lives in, loaded on first use (PEP 562).
_LAZY = {
    "CurveDoctor": "diagnose.callbacks",
    "Doctor": "diagnose.doctor",
    "Examination": "diagnose.examination",
    "KerasCurveDoctor": "diagnose.callbacks",
    "LightningCurveDoctor": "diagnose.callbacks",
    "examine": "diagnose.examination",
    "read": "diagnose.readers",
}

__all__ = [
    "CurveDoctor",
    "Doctor",
    "Examination",
    "KerasCurveDoctor",
    "LightningCurveDoctor",
    "__version__",
    "examine",
    "read",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'diagnose' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(set(globals()) | set(__all__))
