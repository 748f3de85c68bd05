"""CD801 masked-labels: the labels of the first examples are masked."""

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
class MaskedLabels(StartRule):
    """Most examples have no label left, so they teach nothing.

    What it sees:
        The share of the looked-at examples, of training or evaluation, in which every label is -100. Half of them is a warning,
        all of them an error. A live doctor looks at a few examples spread over the data, as the collator makes them.

    Why it matters:
        The loss of such an example is 0 or NaN. The GPU works, the bar moves, and nothing is learned, or the evaluation says
        nothing.

    What to do:
        Print one collated example with its labels. The usual causes: a response template that the tokenizer splits otherwise
        in context, a chat template without a mask of the assistant's turns, or a `max_length` that cuts the answers off.

    When it is wrong:
        A few examples may be unlike the rest of the data.

    References:
        torch `CrossEntropyLoss`: `ignore_index` -100; the mean over no label is NaN.
    """

    code: ClassVar[str] = "CD801"
    name: ClassVar[str] = "masked-labels"
    severity: ClassVar[Severity] = Severity.ERROR
    hushed_by: ClassVar[tuple[str, ...]] = ("zero-loss",)
    asks: ClassVar[tuple[str, ...]] = ("examples_without_labels|eval_examples_without_labels",)

    share: float = threshold(
        0.5, unit="share", low=0.0, high=1.0, source="a reasoned choice: below half of them the data still teaches something"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("no label at all", _FALL, settings={"examples_without_labels": 1.0}),
        Example("most answers cut off", _FALL, settings={"examples_without_labels": 0.75}),
        Example("in the evaluation", _FALL, settings={"examples_without_labels": 0.0, "eval_examples_without_labels": 1.0}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("all have labels", _FALL, settings={"examples_without_labels": 0.0}),
        Example("one of eight", _FALL, settings={"examples_without_labels": 0.125}),
        Example("not told", _FALL),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """The worse of training and evaluation."""
        shares = [
            (share, word)
            for name, word in (("examples_without_labels", "training"), ("eval_examples_without_labels", "evaluation"))
            if (share := number(curves, name)) is not None
        ]
        share, word = max(shares, default=(0.0, ""))
        if share < max(self.share, 1e-9):
            return None
        evidence = Evidence(f"{word} examples without a label", share, ">=", self.share, "share")
        return Remark(
            f"{share:.0%} of the {word} examples looked at have no label but -100: they teach nothing",
            (evidence,),
            "Print one collated example with its labels; check the response template, the assistant mask and max_length.",
            "only what has a label is learned",
            severity=None if share >= 1.0 else Severity.WARNING,
        )
