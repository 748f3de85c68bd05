"""CD501 learning-rate-out-of-range: the learning rate is outside the usual range of its method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Kind, Severity
from diagnose.names import LEARNING_RATE, TRAIN_LOSS
from diagnose.rules.base import Example
from diagnose.rules.settings import AT_LIMIT, TOO_FAST, Remark, SettingsRule, peak_rate, usual_rates

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class LearningRateOutOfRange(SettingsRule):
    """The learning rate is outside the usual range of the training's method.

    What it sees:
        A peak learning rate above or below the range of LoRA, QLoRA or full fine-tuning, as the settings tell the method. For
        adapters of a high rank the low end falls as 1 / rank. It is a warning where a finding about the curve shows what such a
        rate does: a divergence or NaN for one too high, no learning for one too low.

    Why it matters:
        An adapter has few weights, and each must move more: its rates are about ten times those of full fine-tuning. The rate
        of one method used with the other either ruins the model or teaches it nothing.

    What to do:
        Use a rate inside the range; from there, change it by a factor of 3 at a time.

    When it is wrong:
        The ranges are for supervised fine-tuning of language models with AdamW. Other optimizers, training from scratch and
        very large batches have their own.

    References:
        Hu et al. 2021 (LoRA); Dettmers et al. 2023 (QLoRA), table of hyperparameters.
    """

    code: ClassVar[str] = "CD501"
    name: ClassVar[str] = "learning-rate-out-of-range"
    severity: ClassVar[Severity] = Severity.WARNING
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.SUPERVISED})

    firing: ClassVar[tuple[Example, ...]] = (
        Example("full at a rate for LoRA", _FALL, settings={"learning_rate": 2e-4, "method": "full"}),
        Example("LoRA at a rate for full", _FALL, settings={"learning_rate": 2e-5, "method": "lora"}),
        Example(
            "from the logged rate", {**_FALL, LEARNING_RATE: [1e-2 - 1e-3 * i for i in range(10)]}, settings={"method": "qlora"}
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("LoRA as usual", _FALL, settings={"learning_rate": 2e-4, "method": "lora"}),
        Example("unknown method", _FALL, settings={"learning_rate": 1.0}),
        Example("high rank", _FALL, settings={"learning_rate": 3e-5, "method": "lora", "lora_r": 256}),
    )

    def untold(self, curves: Curves) -> Sequence[str]:
        """The rate may stand in the log itself."""
        return [
            name for name, known in (("learning_rate", peak_rate(curves)), ("method", usual_rates(curves))) if known is None
        ]

    def before_start(self, curves: Curves) -> Remark | None:
        """The rate as configured."""
        return self.judge(curves)

    def judge(self, curves: Curves) -> Remark | None:
        """The rate against the range."""
        rate, span = peak_rate(curves), usual_rates(curves)
        if rate is None or span is None or span[0] / AT_LIMIT <= rate <= span[1] * AT_LIMIT:
            return None
        low, high = span
        is_high = rate > high
        method = str(curves.settings.get("method"))
        nearest = high if is_high else low
        return Remark(
            f"learning_rate {rate:.3g} is {'above' if is_high else 'below'} the usual {low:.3g} to {high:.3g} for {method}",
            (Evidence("learning_rate", rate, ">" if is_high else "<", nearest),),
            f"Use a learning rate between {low:.3g} and {high:.3g}.",
            f"rates outside it seldom train {method} well",
            (Change("learning_rate", rate, nearest, nearest / rate),),
            TOO_FAST if is_high else ("flat-loss",),
        )
