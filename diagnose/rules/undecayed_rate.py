"""CD506 undecayed-rate: the learning rate does not come down at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Severity
from diagnose.names import LEARNING_RATE, TRAIN_LOSS
from diagnose.rules.base import Example, threshold
from diagnose.rules.settings import Remark, SettingsRule, is_finished, word

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class UndecayedRate(SettingsRule):
    """The learning rate does not come down towards the end of the run.

    What it sees:
        A constant schedule, or a run at the end of its plan whose last logged rate is still far above none: its schedule was
        made for a longer run and was cut short.

    Why it matters:
        The last part of the run, at low rates, takes the noise out of the weights and most often gives the lowest losses.

    What to do:
        Use `lr_scheduler_type="cosine"`, and let the schedule end where the run ends.

    When it is wrong:
        A constant rate is right where the training is to go on, or where the checkpoints are averaged. Schedules that restart,
        or wait for a plateau, may end at any height.

    References:
        Loshchilov & Hutter 2017 (SGDR). Hägele et al. 2024 for constant rates with a short decay.
    """

    code: ClassVar[str] = "CD506"
    name: ClassVar[str] = "undecayed-rate"
    severity: ClassVar[Severity] = Severity.INFO

    least: float = threshold(
        0.5, unit="share of the peak", low=0.0, high=1.0, source="reported runs cut short ended above half"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("constant", _FALL, settings={"lr_scheduler_type": "constant_with_warmup"}),
        Example("cut short", {**_FALL, LEARNING_RATE: [2e-4 - 5e-6 * i for i in range(10)]}, settings={"max_steps": 100}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("cosine", _FALL, settings={"lr_scheduler_type": "cosine"}),
        Example("linear", {**_FALL, LEARNING_RATE: [2e-4 - 2e-5 * i for i in range(10)]}, settings={"max_steps": 100}),
        Example("under way", {**_FALL, LEARNING_RATE: [2e-4 - 5e-6 * i for i in range(10)]}, settings={"max_steps": 400}),
    )

    def untold(self, curves: Curves) -> Sequence[str]:
        """The rates of a finished run say as much as the name of the schedule."""
        return [] if word(curves, "lr_scheduler_type") or _end(curves) is not None else ["lr_scheduler_type"]

    def judge(self, curves: Curves) -> Remark | None:
        """The schedule's name, then the last rate against the peak."""
        schedule, share = word(curves, "lr_scheduler_type") or "", _end(curves)
        if schedule.startswith("constant"):
            return _remark(
                f"lr_scheduler_type {schedule}: the learning rate is not lowered at the end, 0 % of the way",
                Evidence("learning_rate lowered by the schedule", 0.0, "==", 0.0, "share of the peak"),
            )
        if share is None or share < self.least or curves.is_warming_up or schedule in _ANY_END:
            return None
        return _remark(
            f"the last learning_rate is {100 * share:.0f} % of its peak: the schedule was cut short, or does not decay",
            Evidence("last learning_rate", share, ">=", self.least, "share of the peak", curves[LEARNING_RATE].last_step),
        )


#: Schedules that may rightly end at any height.
_ANY_END = frozenset({"cosine_with_restarts", "cosine_with_min_lr", "reduce_lr_on_plateau", "warmup_stable_decay"})


def _remark(message: str, evidence: Evidence) -> Remark:
    return Remark(
        message,
        (evidence,),
        'Set lr_scheduler_type="cosine", planned for the steps that the run takes.',
        "low rates at the end give the lowest losses",
    )


def _end(curves: Curves) -> float | None:
    """The last rate as a share of the highest; None where the run is not over, or the rates were not logged."""
    rates, peak = curves.get(LEARNING_RATE), curves.peak_lr
    if rates is None or not rates.values or not peak or not is_finished(curves):
        return None
    return rates.values[-1] / peak
