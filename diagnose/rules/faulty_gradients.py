"""CD806 faulty-gradients: a 4-bit model on this processor gets wrong gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example
from diagnose.rules.settings import Remark, StartRule, flag, word

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class FaultyGradients(StartRule):
    """A 4-bit model on this processor gets wrong gradients after its first evaluation.

    What it sees:
        bitsandbytes 4-bit layers on a CPU with AVX512-BF16 instructions, with their fast path for inference switched on, in a
        run that is evaluated.

    Why it matters:
        The first evaluation repacks the weights for inference and nothing unpacks them: every later gradient is wrong (cosine
        0.45 with the right one), while the loss of each batch is still right. The run just learns worse.

    What to do:
        After loading, for every module that has the attribute: `module.support_avx512bf16_for_cpu = False`.

    When it is wrong:
        A bitsandbytes that has mended it; it was measured with 0.50.2.

    References:
        bitsandbytes `nn/modules.py`, `Linear4bit.forward`.
    """

    code: ClassVar[str] = "CD806"
    name: ClassVar[str] = "faulty-gradients"
    severity: ClassVar[Severity] = Severity.ERROR
    asks: ClassVar[tuple[str, ...]] = ("repacks_4bit",)

    firing: ClassVar[tuple[Example, ...]] = (
        Example("evaluated", _FALL, settings={"repacks_4bit": True, "eval_strategy": "steps"}),
        Example("by epoch", _FALL, settings={"repacks_4bit": True, "eval_strategy": "epoch"}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("never evaluated", _FALL, settings={"repacks_4bit": True, "eval_strategy": "no"}),
        Example("mended", _FALL, settings={"repacks_4bit": False, "eval_strategy": "steps"}),
        Example("not told", _FALL),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """Whether the layers repack, and will be made to."""
        if not flag(curves, "repacks_4bit") or word(curves, "eval_strategy", "evaluation_strategy") in (None, "no"):
            return None
        return Remark(
            "4-bit layers on this processor repack their weights at an evaluation: every gradient after the first one is wrong",
            (Evidence("4-bit layers that repack", 1.0, "==", 1.0),),
            "After loading: for m in model.modules(): if hasattr(m, 'support_avx512bf16_for_cpu'): "
            "m.support_avx512bf16_for_cpu = False.",
            "the gradients stay right then, and the evaluation is only slower",
        )
