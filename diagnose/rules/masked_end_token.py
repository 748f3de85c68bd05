"""CD802 masked-end-token: the end token is masked with the padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example
from diagnose.rules.settings import Remark, StartRule, flag

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class MaskedEndToken(StartRule):
    """The end token is never learned, because it is also the padding token and is masked with it.

    What it sees:
        `pad_token` equal to `eos_token` and no label, in any of the looked-at examples, that is the end token.

    Why it matters:
        The loss looks healthy, and the finished model does not stop: it goes on until the length limit, in endless repetition.

    What to do:
        Give the tokenizer a padding token of its own, such as an unused or reserved one, and keep the end token in the labels.

    When it is wrong:
        Where texts go on past the example by intent, as in continued pre-training on cut documents, no end is to be learned.

    References:
        transformers `DataCollatorForLanguageModeling`: every label equal to the padding token becomes -100.
    """

    code: ClassVar[str] = "CD802"
    name: ClassVar[str] = "masked-end-token"
    severity: ClassVar[Severity] = Severity.WARNING
    asks: ClassVar[tuple[str, ...]] = ("pad_is_eos", "end_token_in_labels")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("pad is eos, no end in the labels", _FALL, settings={"pad_is_eos": True, "end_token_in_labels": False}),
        Example(
            "never evaluated",
            _FALL,
            settings={"pad_is_eos": True, "end_token_in_labels": False, "eval_strategy": "no"},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("the end is in the labels", _FALL, settings={"pad_is_eos": True, "end_token_in_labels": True}),
        Example("a padding token of its own", _FALL, settings={"pad_is_eos": False, "end_token_in_labels": False}),
        Example("not told", _FALL),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """Both flags together."""
        if not flag(curves, "pad_is_eos") or flag(curves, "end_token_in_labels") is not False:
            return None
        return Remark(
            "pad_token is eos_token and no label is the end token: the model will not learn to stop",
            (Evidence("labels that are the end token", 0.0, "==", 0.0),),
            "Give the tokenizer a padding token of its own, and keep the end token in the labels.",
            "what is masked as padding is not learned",
        )
