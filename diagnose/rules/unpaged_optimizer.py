"""CD510 unpaged-optimizer: QLoRA with an optimizer whose state must fit into the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Kind, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example
from diagnose.rules.settings import Remark, SettingsRule, word

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class UnpagedOptimizer(SettingsRule):
    """A QLoRA run uses an optimizer whose state must always fit into the GPU.

    What it sees:
        A base model in four bits with an optimizer that is not paged.

    Why it matters:
        Who trains in four bits is short of memory; a paged optimizer moves its state out when a long batch needs the room,
        instead of ending the run out of memory.

    What to do:
        Set `optim="paged_adamw_8bit"`.

    When it is wrong:
        Where memory suffices nothing is gained: the state of an adapter is small. A loss that breaks away at a usual rate under
        an 8-bit optimizer is a reason to try the plain one.

    References:
        Dettmers et al. 2023 (QLoRA), section on paged optimizers.
    """

    code: ClassVar[str] = "CD510"
    name: ClassVar[str] = "unpaged-optimizer"
    severity: ClassVar[Severity] = Severity.INFO
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)
    asks: ClassVar[tuple[str, ...]] = ("method", "optim")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("AdamW of torch", _FALL, settings={"method": "qlora", "optim": "adamw_torch_fused"}),
        Example("eight bits", _FALL, settings={"method": "qlora", "optim": "adamw_8bit"}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("paged", _FALL, settings={"method": "qlora", "optim": "paged_adamw_8bit"}),
        Example("LoRA", _FALL, settings={"method": "lora", "optim": "adamw_torch_fused"}),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """Whether the optimizer of a QLoRA run is paged."""
        optim = word(curves, "optim") or ""
        if word(curves, "method") != "qlora" or optim.startswith("paged"):
            return None
        return Remark(
            f"optim {optim} in a QLoRA run: no paging of its state; usual is paged_adamw_8bit",
            (Evidence("optimizers that are paged", 0.0, "==", 0.0),),
            'Set optim="paged_adamw_8bit".',
            "its state gives way when a long batch needs the memory",
            (Change("optim", optim, "paged_adamw_8bit"),),
        )
