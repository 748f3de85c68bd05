"""CD805 low-precision-weights: the trained weights are kept in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example
from diagnose.rules.settings import Remark, StartRule, word

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class LowPrecisionWeights(StartRule):
    """The trained weights themselves are kept in 16 bits, in which small updates are lost.

    What it sees:
        Trainable parameters in fp16; or, in full fine-tuning, in bf16. Adapters in bf16 are usual and nothing is said of them.

    Why it matters:
        bf16 has 8 bits of precision: an update below 1/256 of a weight rounds to nothing, and a rate of 1e-5 makes such
        updates. fp16 weights overflow, and the loss scaler refuses them (`Attempting to unscale FP16 gradients`).

    What to do:
        Load the model in fp32 and let `bf16=True` compute in bf16; where the memory is short, train an adapter.

    When it is wrong:
        An optimizer with stochastic rounding or fp32 master weights of its own keeps what is lost here.

    References:
        Zamirai et al. 2020, "Revisiting BFloat16 Training"; Micikevicius et al. 2018, "Mixed Precision Training".
    """

    code: ClassVar[str] = "CD805"
    name: ClassVar[str] = "low-precision-weights"
    severity: ClassVar[Severity] = Severity.WARNING
    asks: ClassVar[tuple[str, ...]] = ("trainable_dtype",)

    firing: ClassVar[tuple[Example, ...]] = (
        Example("fp16 adapter", _FALL, settings={"trainable_dtype": "float16", "method": "lora"}),
        Example("all of it in bf16", _FALL, settings={"trainable_dtype": "bfloat16", "method": "full"}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("fp32", _FALL, settings={"trainable_dtype": "float32", "method": "full"}),
        Example("bf16 adapter", _FALL, settings={"trainable_dtype": "bfloat16", "method": "qlora"}),
        Example("not told", _FALL),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """The type, and for bf16 the method."""
        kept, method = word(curves, "trainable_dtype"), word(curves, "method")
        if kept != "float16" and not (kept == "bfloat16" and method == "full"):
            return None
        lost = "values above 65504 overflow" if kept == "float16" else "updates below 1/256 of a weight round to nothing"
        return Remark(
            f"the trained weights are kept in {kept}: {lost}",
            (Evidence(f"trainable parameters in {kept}", 1.0, "==", 1.0),),
            "Load the model in fp32 and let bf16=True compute in bf16, or train an adapter.",
            "weights need more precision than what is computed with them",
            severity=None if kept == "float16" else Severity.INFO,
        )
