"""CD509 half-precision: the training computes in fp16."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Kind, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example
from diagnose.rules.settings import Remark, SettingsRule, flag

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class HalfPrecision(SettingsRule):
    """The training computes in fp16, which overflows easily.

    What it sees:
        `fp16=True`. It is a warning where NaN appeared.

    Why it matters:
        fp16 ends at 65504: activations and gradients of large models pass it, become infinite, then NaN. bf16 needs the same
        memory and has the range of fp32.

    What to do:
        Set `bf16=True` and `fp16=False` on cards that know it (Ampere and newer).

    When it is wrong:
        On a T4 or V100 there is no bf16, and with its loss scaler fp16 trains most models well.

    References:
        Micikevicius et al. 2018, "Mixed Precision Training"; Kalamkar et al. 2019 for bf16.
    """

    code: ClassVar[str] = "CD509"
    name: ClassVar[str] = "half-precision"
    severity: ClassVar[Severity] = Severity.WARNING
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)
    asks: ClassVar[tuple[str, ...]] = ("fp16",)

    firing: ClassVar[tuple[Example, ...]] = (
        Example("fp16", _FALL, settings={"fp16": True}),
        Example("fp16 with NaN", {TRAIN_LOSS: [2.0, 1.9, math.nan, math.nan]}, settings={"fp16": True}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("bf16", _FALL, settings={"fp16": False, "bf16": True}),
        Example("not told", _FALL),
    )

    def before_start(self, curves: Curves) -> Remark | None:
        """fp16 where there is a choice."""
        return self.judge(curves) if flag(curves, "bf16_available") else None

    def judge(self, curves: Curves) -> Remark | None:
        """Whether fp16 is on."""
        if not flag(curves, "fp16"):
            return None
        known = " though the device knows bf16" if flag(curves, "bf16_available") else ""
        return Remark(
            f"fp16=True{known}: values above 65504 overflow to NaN, which bf16 does not do in the same memory",
            (Evidence("fp16", 1.0, "==", 1.0),),
            "Set bf16=True and fp16=False, on a card that knows bf16.",
            "bf16 has the range of fp32",
            (Change("fp16", True, False), Change("bf16", curves.settings.get("bf16"), True)),
            ("nan-loss", "hidden-nan", "nan-eval"),
        )
