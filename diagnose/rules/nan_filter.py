"""CD518 nan-filter: the log hides NaN, and no gradient norm would show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Kind, Severity
from diagnose.names import GRAD_NORM, TRAIN_LOSS
from diagnose.rules.base import Example
from diagnose.rules.settings import Remark, SettingsRule, flag

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class NanFilter(SettingsRule):
    """The Trainer hides NaN from its log, and no gradient norm was logged that would show it.

    What it sees:
        `logging_nan_inf_filter` is on, as it is by default, in a log of losses without gradient norms.

    Why it matters:
        The filter writes the running mean in place of a loss that is not finite. A run that is dead then logs losses that look
        well; the gradient norm is never filtered.

    What to do:
        Log the gradient norm (transformers does so from 4.38 on), or set `logging_nan_inf_filter=False`.

    When it is wrong:
        Most runs never meet a NaN. With the filter off, one harmless NaN makes every later logged loss NaN.

    References:
        transformers `Trainer`: the training loop adds the mean loss in place of one that is NaN or infinite.
    """

    code: ClassVar[str] = "CD518"
    name: ClassVar[str] = "nan-filter"
    severity: ClassVar[Severity] = Severity.INFO
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)
    asks: ClassVar[tuple[str, ...]] = ("logging_nan_inf_filter",)
    hushed_by: ClassVar[tuple[str, ...]] = ("nan-loss", "hidden-nan", "zero-loss")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("no gradient norm", _FALL, settings={"logging_nan_inf_filter": True}),
        Example("with evaluations", {**_FALL, "eval/loss": [1.9] * 10}, settings={"logging_nan_inf_filter": True}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("with the gradient norm", {**_FALL, GRAD_NORM: [1.0] * 10}, settings={"logging_nan_inf_filter": True}),
        Example("filter off", _FALL, settings={"logging_nan_inf_filter": False}),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """Whether NaN could stay unseen."""
        if not flag(curves, "logging_nan_inf_filter") or curves.get(GRAD_NORM) is not None:
            return None
        return Remark(
            "logging_nan_inf_filter=True and no gradient norm in the log: a NaN would not be seen",
            (Evidence(f"points of {GRAD_NORM}", 0.0, "==", 0.0),),
            "Log the gradient norm, or set logging_nan_inf_filter=False.",
            "a loss that is NaN is logged as the mean of the losses before it",
        )
