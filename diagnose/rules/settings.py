"""What the rules about settings share: they judge once, at the end, with what the curve has shown by then.

A setting outside its usual range is a fact and no trouble: INFO. It becomes a WARNING where a finding about the curve is open
that the setting is the likely cause of; the cure is then that finding's, so that a run never gets two opinions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import SETTINGS, UNTOLD, Change, Evidence, Finding, Prescription, Severity, Status
from diagnose.prescribe import RANGES
from diagnose.rules.base import NOTHING, Rule, Watch

#: A rate within this factor of a limit is at the limit: settings are typed by hand, and logs round them.
AT_LIMIT = 1.01
#: Rank up to which the usual rates of LoRA hold; above it the highest one falls as 1 / rank (tables of practitioners: 2e-4 up
#: to 32, 1e-4 at 64, 5e-5 at 128, 2.5e-5 at 256).
PLAIN_RANK = 32
#: The highest rate of that table at `PLAIN_RANK`.
RANK_RATE = 2e-4
#: What a rate that is too high does to a curve.
TOO_FAST = ("loss-divergence", "nan-loss", "hidden-nan", "unstable-loss", "exploding-gradient", "collapsed-loss")
#: Share of the planned steps from which a run counts as finished: the last log comes before the last step.
_FINISHED = 0.95
#: No setting is larger, and what is may not fit into a float.
_HUGE = 1e300


@dataclass(frozen=True, slots=True)
class Remark:
    """What a rule says of a setting.

    Args:
        message: the setting, its value and the usual range.
        evidence: the comparison.
        advice: what to set, in an imperative sentence.
        why: the reason in one sentence.
        changes: see `Prescription`.
        causes: names of rules about the curve whose open finding the setting would explain.
        severity: of a StartRule's finding, where it is not the rule's own.
    """

    message: str
    evidence: tuple[Evidence, ...]
    advice: str
    why: str
    changes: tuple[Change, ...] = ()
    causes: tuple[str, ...] = ()
    severity: Severity | None = None


@dataclass(frozen=True)
class SettingsRule(Rule):
    """A rule about one setting: it says what it asks for, and judges it. It needs no metric."""

    #: Settings without which it cannot judge; any one of several is written `a|b`.
    asks: ClassVar[tuple[str, ...]] = ()

    def start(self) -> Watch:
        """A fresh Watch for one run; it holds nothing."""
        return _SettingsWatch(self)

    def untold(self, curves: Curves) -> Sequence[str]:
        """What the log would have to tell before this rule can judge; empty when it can."""
        return [ask.split("|")[0] for ask in self.asks if all(curves.settings.get(a) is None for a in ask.split("|"))]

    def before_start(self, curves: Curves) -> Remark | None:
        """What to say before the first step, where no curve is needed and waiting would cost something; None by default."""
        return None

    @abstractmethod
    def judge(self, curves: Curves) -> Remark | None:
        """What there is to say of the setting; None when it is as usual. Asked for only when all that it asks for is told."""


@dataclass(frozen=True)
class StartRule(SettingsRule):
    """A rule about what no curve shows: data, weights and machine, as a live doctor found them before the first step.

    What it asks for stands in no log, so it keeps silent where no live doctor left it in `curve_doctor.json`. What it says is
    certain, so it has its own severity whatever the curve shows.
    """

    def start(self) -> Watch:
        """A fresh Watch for one run; it holds nothing."""
        return _StartWatch(self)

    def before_start(self, curves: Curves) -> Remark | None:
        """All of it."""
        return self.judge(curves)


class _RemarkWatch(Watch):
    """Holds nothing but its rule."""

    def __init__(self, rule: SettingsRule) -> None:
        super().__init__(rule)
        self.judged = rule

    def at_start(self, curves: Curves) -> Sequence[Finding]:
        remark = None if self.judged.untold(curves) else self.judged.before_start(curves)
        return NOTHING if remark is None else (self.told(remark, 0, remark.severity or self.rule.severity),)

    def told(self, remark: Remark, step: int, severity: Severity) -> Finding:
        """The finding of a remark, with its cure."""
        cure = Prescription(remark.changes, remark.advice, remark.why)
        return self.finding(SETTINGS, step, step, remark.message, *remark.evidence, severity=severity, prescription=cure)


class _StartWatch(_RemarkWatch):
    def close(self, curves: Curves) -> Sequence[Finding]:
        return self.at_start(curves)


class _SettingsWatch(_RemarkWatch):
    def skip(self, curves: Curves) -> str | None:
        untold = self.judged.untold(curves)
        return f"{UNTOLD}{', '.join(untold)}" if untold else None

    def close(self, curves: Curves) -> Sequence[Finding]:
        remark = None if self.judged.untold(curves) else self.judged.judge(curves)
        if remark is None:
            return NOTHING
        # At the last step, so that the finding that it explains comes first and leads.
        step = curves.last_step
        trouble = _open(curves, remark.causes)
        if trouble is not None:
            text = f"{remark.message}: the likely cause of {trouble.name} at step {trouble.first_step}"
            return (self.finding(SETTINGS, step, step, text, *remark.evidence, severity=Severity.WARNING),)
        return (self.told(remark, step, Severity.INFO),)


def _open(curves: Curves, names: Sequence[str]) -> Finding | None:
    """The first of these findings that is open and more than a fact."""
    found = [f for n in names if (f := curves.found.get(n)) and f.status is Status.OPEN and f.severity is not Severity.INFO]
    return min(found, key=lambda f: (f.first_step, f.code), default=None)


def number(curves: Curves, *names: str) -> float | None:
    """The first of these settings that is a finite number; True and False are none."""
    for name in names:
        value = curves.settings.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _HUGE:
            return float(value)
    return None


def word(curves: Curves, *names: str) -> str | None:
    """The first of these settings that is a text, in lower case."""
    return next((v.lower() for name in names if isinstance(v := curves.settings.get(name), str)), None)


def flag(curves: Curves, name: str) -> bool | None:
    """A setting that is on or off; None where it is not told."""
    value = curves.settings.get(name)
    return value if isinstance(value, bool) else None


def usual_rates(curves: Curves) -> tuple[float, float] | None:
    """Lowest and highest usual learning rate of the run's method, the lowest scaled with a high rank; None for no method."""
    low, high = RANGES.get(str(curves.settings.get("method")), (math.nan, math.nan))
    rank = number(curves, "lora_r") or 0.0
    return None if math.isnan(low) else (low * min(1.0, PLAIN_RANK / max(rank, 1.0)), high)


def peak_rate(curves: Curves) -> float | None:
    """The learning rate as configured, or the highest logged; None where neither is known, or it may still be rising."""
    configured = number(curves, "learning_rate") or 0.0
    if configured > 0:
        return configured
    return None if curves.is_warming_up else curves.peak_lr


def is_finished(curves: Curves) -> bool:
    """Whether the run reached the end of its plan; False where no plan is known."""
    planned = curves.planned_steps
    return planned is not None and curves.last_step >= _FINISHED * planned
