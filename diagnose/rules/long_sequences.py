"""CD504 long-sequences: the sequences are longer than fine-tuning usually needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example, threshold
from diagnose.rules.settings import Remark, SettingsRule, number

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class LongSequences(SettingsRule):
    """The sequences may be longer than fine-tuning usually needs.

    What it sees:
        A `max_length` above that of long transcripts.

    Why it matters:
        Attention takes memory or time with the square of the length, and activations grow with it: a few long examples set the
        price of all.

    What to do:
        Measure the lengths first, and take the one that covers 95 % of the examples.

    When it is wrong:
        Documents and code may need it; it is an upper bound, and does not make short examples longer unless they are
        packed.

    References:
        Dao et al. 2022, "FlashAttention", for what long sequences cost.
    """

    code: ClassVar[str] = "CD504"
    name: ClassVar[str] = "long-sequences"
    severity: ClassVar[Severity] = Severity.INFO
    asks: ClassVar[tuple[str, ...]] = ("max_length|max_seq_length|cutoff_len",)

    longest: float = threshold(8192.0, unit="tokens", low=1.0, high=1e7, source="2048 is usual, 4096 to 8192 for transcripts")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("16384", _FALL, settings={"max_length": 16384}),
        Example("an older name", _FALL, settings={"max_seq_length": 32768}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("as usual", _FALL, settings={"max_length": 2048}),
        Example("transcripts", _FALL, settings={"max_length": 8192}),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """The length against that of long transcripts."""
        length = number(curves, "max_length", "max_seq_length", "cutoff_len")
        if length is None or length <= self.longest:
            return None
        return Remark(
            f"max_length {length:g} is above the {self.longest:g} that long transcripts take; 2048 is usual",
            (Evidence("max_length", length, ">", self.longest, "tokens"),),
            "Measure the lengths of the examples and take the one that covers 95 % of them.",
            "memory and time grow faster than the length",
        )
