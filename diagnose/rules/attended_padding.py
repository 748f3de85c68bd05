"""CD803 attended-padding: the attention mask is on over padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example, threshold
from diagnose.rules.settings import Remark, StartRule, number

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class AttendedPadding(StartRule):
    """The attention mask is on over padding, so the model reads the padding as text.

    What it sees:
        The share of padding positions, in the looked-at examples, where the attention mask is 1, or all of them where a batch
        with padding has no mask at all.

    Why it matters:
        With padding on the left every real token attends to it, and results depend on the batch. With padding on the right and
        causal attention the training hardly changes, but generation from left-padded prompts later does.

    What to do:
        Let the tokenizer make the mask (`return_attention_mask=True`, `tokenizer.pad`), and hand it to the model.

    When it is wrong:
        Where the padding token is also a text token, trailing ones may be text.

    References:
        transformers documentation, "Padding and truncation".
    """

    code: ClassVar[str] = "CD803"
    name: ClassVar[str] = "attended-padding"
    severity: ClassVar[Severity] = Severity.WARNING
    asks: ClassVar[tuple[str, ...]] = ("attended_padding",)

    share: float = threshold(
        0.5, unit="share", low=0.01, high=1.0, source="a reasoned choice: one padded end token per example stays below it"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("a mask of ones", _FALL, settings={"attended_padding": 1.0}),
        Example("mostly", _FALL, settings={"attended_padding": 0.8}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("masked", _FALL, settings={"attended_padding": 0.0}),
        Example("no padding, so not told", _FALL),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """The share against the threshold."""
        share = number(curves, "attended_padding") or 0.0
        if share < self.share:
            return None
        return Remark(
            f"the attention mask is 1 on {share:.0%} of the padding: the model reads padding as text",
            (Evidence("padding with an attention mask of 1", share, ">=", self.share, "share"),),
            "Let the tokenizer make the attention mask, and hand it to the model.",
            "results must not depend on what else is in the batch",
        )
