"""CD505 odd-warm-up: the warm-up is missing, long, or longer than the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Evidence, Severity
from diagnose.names import LEARNING_RATE, TRAIN_LOSS
from diagnose.rules.base import Example, threshold
from diagnose.rules.settings import Remark, SettingsRule, is_finished, number

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}

#: Troubles that a full rate at the first step makes, and the share of the plan in which they then show.
_FRAGILE = ("loss-divergence", "nan-loss", "hidden-nan", "loss-spike", "collapsed-loss", "exploding-gradient")


@dataclass(frozen=True)
class OddWarmUp(SettingsRule):
    """The learning rate rises for an unusually small or large part of the run.

    What it sees:
        A warm-up outside the usual share of the planned steps, or none; or a rate that still rises at the end of the plan. It
        is a warning where there is less than usual and the loss broke away early in the run.

    Why it matters:
        The full rate at once can break a fragile start: an adapter begins with B = 0 and the optimizer without statistics. A
        warm-up longer than the run means that the rate which was chosen was never used.

    What to do:
        Set `warmup_steps=0.05`, a share of the steps (`warmup_ratio` in older versions).

    When it is wrong:
        Many runs do well without one, those at low rates above all. One-cycle schedules rise for a third of the run on purpose.

    References:
        Goyal et al. 2017 for the warm-up; Kalra & Barkeshli 2024, "Why Warmup the Learning Rate?".
    """

    code: ClassVar[str] = "CD505"
    name: ClassVar[str] = "odd-warm-up"
    severity: ClassVar[Severity] = Severity.WARNING

    low: float = threshold(0.03, unit="share of the steps", low=0.0, high=1.0, source="usual are 3 to 10 % of the steps")
    high: float = threshold(0.1, unit="share of the steps", low=0.0, high=1.0, source="usual are 3 to 10 % of the steps")
    early: float = threshold(
        0.1, unit="share of the steps", low=0.0, high=1.0, source="where a usual warm-up ends at the latest"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("none", _FALL, settings={"warmup_steps": 0, "max_steps": 1000}),
        Example("half of the run", _FALL, settings={"warmup_ratio": 0.5}),
        Example("longer than the run", _FALL, settings={"warmup_steps": 500, "max_steps": 100}),
        Example("still rising", {**_FALL, LEARNING_RATE: [1e-5 * i for i in range(1, 11)]}, settings={"max_steps": 100}),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("five in a hundred", _FALL, settings={"warmup_steps": 0.05}),
        Example("few steps of a short run", _FALL, settings={"warmup_steps": 2, "max_steps": 25}),
        Example("not told", {**_FALL, LEARNING_RATE: [2e-4 - 1e-5 * i for i in range(10)]}),
    )

    def untold(self, curves: Curves) -> Sequence[str]:
        """A rate that still rises at the end shows without the settings."""
        return [] if _share(curves) is not None or _is_rising(curves) else ["warmup_steps"]

    def before_start(self, curves: Curves) -> Remark | None:
        """A warm-up that never ends; others are seen by their harm."""
        return self.judge(curves) if (_share(curves) or (0.0, 0.0))[0] > 1.0 else None

    def judge(self, curves: Curves) -> Remark | None:
        """The warm-up's share of the plan against the usual."""
        told, usual = _share(curves), f"usual are {100 * self.low:g} to {100 * self.high:g} %"
        if _is_rising(curves):
            rates = curves[LEARNING_RATE].recent(2)
            return _remark(
                f"learning_rate still rises at the end of the run, to {rates[-1]:.3g}: the warm-up is longer than the run",
                Evidence("last learning_rate against the one before", rates[-1], ">", rates[0], step=curves.last_step),
            )
        if told is None:
            return None
        share, step = told
        if share > 1.0:
            return _remark(
                f"the warm-up takes {100 * share:.0f} % of the steps, longer than the run; {usual}",
                Evidence("warm-up", share, ">", 1.0, "share of the steps"),
            )
        if share > self.high + step:
            return _remark(
                f"the warm-up takes {100 * share:.3g} % of the steps; {usual}",
                Evidence("warm-up", share, ">", self.high, "share of the steps"),
            )
        if share < self.low - step:
            part = f"{100 * share:.2g} % of the steps are warm-up" if share else "no warm-up: the rate is full from step 1 on"
            causes = tuple(
                n for n in _FRAGILE if n in curves.found and _is_early(curves, curves.found[n].first_step, self.early)
            )
            return _remark(f"{part}; {usual}", Evidence("warm-up", share, "<", self.low, "share of the steps"), causes)
        return None


def _remark(message: str, evidence: Evidence, causes: tuple[str, ...] = ()) -> Remark:
    return Remark(
        message,
        (evidence,),
        "Set warmup_steps=0.05, which is a share of the steps (warmup_ratio in older versions).",
        "the start of a run is fragile, and the rest wants its full rate",
        causes=causes,
    )


def _share(curves: Curves) -> tuple[float, float] | None:
    """The warm-up's share of the planned steps, and the share of one step where it was rounded; None if it is not told."""
    steps, ratio = number(curves, "warmup_steps"), number(curves, "warmup_ratio")
    if steps is None and ratio is None:
        return None
    if not steps:
        return ratio or 0.0, 0.0
    if steps < 1:
        return steps, 0.0
    planned = curves.planned_steps
    return (steps / planned, 1.0 / planned) if planned else None


def _is_rising(curves: Curves) -> bool:
    return curves.is_warming_up and is_finished(curves)


def _is_early(curves: Curves, step: int, share: float) -> bool:
    planned = curves.planned_steps
    return planned is not None and step <= share * planned
