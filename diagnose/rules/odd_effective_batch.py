"""CD503 odd-effective-batch: an update averages over unusually few or many examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example, threshold
from diagnose.rules.settings import Remark, SettingsRule, number

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class OddEffectiveBatch(SettingsRule):
    """An update of the weights averages over unusually few or many examples.

    What it sees:
        Examples per device x accumulated steps x devices outside the usual range. It is a warning where the batch is tiny and
        the loss unstable.

    Why it matters:
        A small batch makes each update noisy at a rate that was meant for a larger one; a large one makes few updates of the
        same data.

    What to do:
        Change `gradient_accumulation_steps`: it costs no memory. 4 x 4 suits a card of 24 GB, 2 x 16 a smaller one.

    When it is wrong:
        With packing one example is a full sequence of many, and small batches are no longer small. A rate tuned for the batch
        makes up for either.

    References:
        McCandlish et al. 2018, "An Empirical Model of Large-Batch Training".
    """

    code: ClassVar[str] = "CD503"
    name: ClassVar[str] = "odd-effective-batch"
    severity: ClassVar[Severity] = Severity.WARNING

    low: float = threshold(16.0, unit="examples", low=1.0, high=1e6, source="usual for fine-tuning are 16 to 64 examples")
    high: float = threshold(64.0, unit="examples", low=1.0, high=1e6, source="usual for fine-tuning are 16 to 64 examples")
    tiny: float = threshold(4.0, unit="examples", low=1.0, high=1e6, source="a quarter of the low end: noise twice as high")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("two", _FALL, settings={"total_train_batch_size": 2}),
        Example(
            "at least 128 on devices that are not told",
            _FALL,
            settings={"per_device_train_batch_size": 16, "gradient_accumulation_steps": 8},
        ),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("sixteen", _FALL, settings={"total_train_batch_size": 16}),
        Example("few on devices that are not told", _FALL, settings={"train_batch_size": 2, "gradient_accumulation_steps": 1}),
        Example(
            "four on each of eight",
            _FALL,
            settings={"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "world_size": 8},
        ),
    )

    def untold(self, curves: Curves) -> Sequence[str]:
        """Where the devices are not told, a batch that is too large can be seen all the same."""
        size, is_whole = _effective(curves)
        if size is None:
            return ["total_train_batch_size"]
        return [] if is_whole or size > self.high else ["world_size"]

    def judge(self, curves: Curves) -> Remark | None:
        """The effective batch against the range."""
        size, is_whole = _effective(curves)
        if size is None or self.low <= size <= self.high:
            return None
        is_high = size > self.high
        said = f"{'' if is_whole else 'at least '}{size:g} example{'' if size == 1 else 's'}"
        return Remark(
            f"{said} an update (per device x accumulation x devices): usual are {self.low:g} to {self.high:g}",
            (Evidence("effective batch", size, ">" if is_high else "<", self.high if is_high else self.low, "examples"),),
            f"Set gradient_accumulation_steps so that an update sees {self.low:g} to 32 examples.",
            "it changes the noise of an update and costs no memory",
            causes=("unstable-loss",) if size <= self.tiny else (),
        )


def _effective(curves: Curves) -> tuple[float | None, bool]:
    """Examples an update, and whether all devices are in it."""
    total = number(curves, "total_train_batch_size")
    if total:
        return total, True
    batch = number(curves, "per_device_train_batch_size", "train_batch_size")
    accumulated, devices = number(curves, "gradient_accumulation_steps"), number(curves, "world_size")
    if not batch or not accumulated:
        return None, False
    return batch * accumulated * (devices or 1.0), bool(devices)
