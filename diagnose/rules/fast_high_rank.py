"""CD519 fast-high-rank: the learning rate is high for the rank of the adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Kind, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.prescribe import FACTOR
from diagnose.rules.base import Example
from diagnose.rules.settings import AT_LIMIT, PLAIN_RANK, RANK_RATE, TOO_FAST, Remark, SettingsRule, number, peak_rate

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class FastHighRank(SettingsRule):
    """The learning rate is high for the rank of the adapter.

    What it sees:
        An adapter of a rank above 32 at a learning rate above what practitioners use for such ranks: it halves when the rank
        doubles. It is a warning where the loss broke away or is unstable.

    Why it matters:
        More rank means more weights that move at once; a rate that suits rank 16 can break an adapter of rank 128.

    What to do:
        Lower the rate with the rank, by a factor of 3 at a time, or take a lower rank: 16 suffices for most tasks.

    When it is wrong:
        With `lora_alpha` much smaller than the rank the adapter is scaled down already, and with rank-stabilized scaling the
        numbers differ.

    References:
        Kalajdzievski 2023 (rsLoRA), for how the scale of an update depends on the rank.
    """

    code: ClassVar[str] = "CD519"
    name: ClassVar[str] = "fast-high-rank"
    severity: ClassVar[Severity] = Severity.WARNING
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.SUPERVISED})
    hushed_by: ClassVar[tuple[str, ...]] = ("learning-rate-out-of-range",)

    firing: ClassVar[tuple[Example, ...]] = (
        Example("rank 256", _FALL, settings={"learning_rate": 2e-4, "method": "lora", "lora_r": 256}),
        Example("rank 64", _FALL, settings={"learning_rate": 2e-4, "method": "qlora", "lora_r": 64}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("rank 16", _FALL, settings={"learning_rate": 5e-4, "method": "lora", "lora_r": 16}),
        Example("rank 128", _FALL, settings={"learning_rate": 5e-5, "method": "lora", "lora_r": 128}),
    )

    def untold(self, curves: Curves) -> Sequence[str]:
        """The rate may stand in the log itself."""
        known = (("learning_rate", peak_rate(curves)), ("lora_r", number(curves, "lora_r")))
        return [name for name, value in known if value is None]

    def before_start(self, curves: Curves) -> Remark | None:
        """The rate as configured."""
        return self.judge(curves)

    def judge(self, curves: Curves) -> Remark | None:
        """The rate against the one for the rank."""
        rate, rank = peak_rate(curves), number(curves, "lora_r")
        if rate is None or rank is None or rank <= PLAIN_RANK:
            return None
        limit = RANK_RATE * PLAIN_RANK / rank
        if rate <= limit * AT_LIMIT:
            return None
        return Remark(
            f"learning_rate {rate:.3g} is above the {limit:.2g} that is usual at rank {rank:g}",
            (Evidence("learning_rate", rate, ">", limit),),
            "Lower the learning rate by a factor of 3, or take a lower rank.",
            "the higher the rank, the more weights move at once",
            (Change("learning_rate", rate, max(limit, rate / FACTOR), max(limit, rate / FACTOR) / rate),),
            TOO_FAST,
        )
