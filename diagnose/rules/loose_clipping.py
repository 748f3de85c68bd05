"""CD507 loose-clipping: gradients are not clipped, or far above the usual norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example, threshold
from diagnose.rules.settings import TOO_FAST, Remark, SettingsRule, number

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class LooseClipping(SettingsRule):
    """Gradients are not clipped, or only far above the usual norm.

    What it sees:
        `max_grad_norm` of 0, which means none, or far above 1. It is a warning where the loss broke away or jumps.

    Why it matters:
        One bad batch can then move the weights as far as a hundred good ones.

    What to do:
        Set `max_grad_norm=1.0`.

    When it is wrong:
        Models whose usual gradient norm is far above 1 are slowed down by clipping at 1. DeepSpeed clips by its own setting.

    References:
        Pascanu et al. 2013, "On the difficulty of training recurrent neural networks".
    """

    code: ClassVar[str] = "CD507"
    name: ClassVar[str] = "loose-clipping"
    severity: ClassVar[Severity] = Severity.WARNING
    asks: ClassVar[tuple[str, ...]] = ("max_grad_norm",)

    most: float = threshold(
        10.0, unit="gradient norm", low=1e-6, high=1e6, source="ten times the usual 1.0 clips hardly anything"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("none", _FALL, settings={"max_grad_norm": 0.0}),
        Example("at 100", _FALL, settings={"max_grad_norm": 100.0}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("as usual", _FALL, settings={"max_grad_norm": 1.0}),
        Example("as for QLoRA", _FALL, settings={"max_grad_norm": 0.3}),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """The norm at which gradients are clipped against the usual."""
        norm = number(curves, "max_grad_norm")
        if norm is None or 0 < norm <= self.most:
            return None
        is_none = norm <= 0
        evidence = Evidence("max_grad_norm", norm, "<=" if is_none else ">", 0.0 if is_none else self.most)
        return Remark(
            f"max_grad_norm {norm:g}{' clips no gradient' if is_none else ' clips hardly any gradient'}; usual is 1",
            (evidence,),
            "Set max_grad_norm=1.0.",
            "it bounds what one bad batch can do",
            (Change("max_grad_norm", norm, 1.0),),
            (*TOO_FAST, "loss-spike"),
        )
