"""Findings and skips to one word, one sentence and one stop decision: policy, no statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnose.model import SETTINGS, Best, Finding, Severity, Skip, Status, StopDecision, Verdict

if TYPE_CHECKING:
    from diagnose.curves import Curves
    from diagnose.rules.base import Rule

#: Findings that end a run once they are errors: the run is lost, learns nothing, or only memorizes from here on.
STOPPING = frozenset(
    {
        "nan-loss",
        "hidden-nan",
        "zero-loss",
        "loss-divergence",
        "collapsed-loss",
        "flat-loss",
        "zero-learning-rate",
        "no-gradient",
        "memorization",
        "dpo-no-signal",
        "grpo-no-signal",
    }
)


@dataclass(frozen=True, slots=True)
class StopPolicy:
    """Which findings end a run.

    Args:
        names: rule names; a finding of one of them stops the run while it is an open error.
        grace: steps at the start in which nothing stops the run; what is still open after them does.
    """

    names: frozenset[str] = STOPPING
    grace: int = 0


def decide(changed: Iterable[Finding], curves: Curves, policy: StopPolicy) -> StopDecision:
    """Whether what was found ends the run.

    Args:
        changed: findings that the last row made or changed; all of them at the first row after the grace.
        curves: the run so far.
        policy: which findings stop, and from when on.
    """
    if curves.last_step <= policy.grace:
        return StopDecision(stop=False)
    for finding in changed:
        if finding.severity is Severity.ERROR and finding.status is Status.OPEN and finding.name in policy.names:
            best = curves.best
            return StopDecision(True, curves.last_step, finding, None if best is None else best.step)
    return StopDecision(stop=False)


def verdict(findings: Iterable[Finding], skips: Iterable[Skip], rules: Sequence[Rule], stop: StopDecision) -> Verdict:
    """One word for the run.

    SICK for an open error, WATCH for an open warning or an error that a live doctor would have stopped for although it
    passed later, INCONCLUSIVE where nothing was found but a rule whose silence would look like health could not look,
    HEALTHY otherwise.
    """
    live = [f for f in findings if f.status is Status.OPEN]
    if any(f.severity is Severity.ERROR for f in live):
        return Verdict.SICK
    if stop.stop or any(f.severity is Severity.WARNING for f in live):
        return Verdict.WATCH
    vital = {rule.code for rule in rules if rule.vital}
    if any(f.name == "too-short" for f in live) or any(s.code in vital for s in skips):
        return Verdict.INCONCLUSIVE
    return Verdict.HEALTHY


def leading(findings: Sequence[Finding]) -> Finding | None:
    """The finding that tells the run's story: the earliest of the most serious open ones; None without any.

    A setting that is not as usual tells no story while the curve shows no trouble from it.
    """
    live = [f for f in findings if f.status is Status.OPEN and (f.metric != SETTINGS or f.severity is not Severity.INFO)]
    return min(live, key=lambda f: (-f.severity.rank, f.first_step, f.code), default=None)


def headline(word: Verdict, findings: Sequence[Finding], skips: Sequence[Skip], best: Best | None, stop: StopDecision) -> str:
    """One sentence that a tired person understands."""
    first = leading([f for f in findings if f.severity is not Severity.INFO])
    keep = "" if best is None else f" Best checkpoint: step {best.step} ({best.metric} {best.value:.4g})."
    if word in (Verdict.SICK, Verdict.WATCH) and first is not None:
        return f"{first.name}: {first.message}{_rest_of_the_story(first, findings)}.{keep}"
    if word is Verdict.WATCH and stop.because is not None:
        return f"{stop.because.name} at step {stop.step} was reason enough to stop, but it passed.{keep}"
    if word is Verdict.INCONCLUSIVE:
        short = next((f.message for f in findings if f.name == "too-short"), None)
        why = short or next((f"{s.name} could not look: {s.reason}" for s in skips), "too little was logged")
        return f"No trouble seen, but not enough to call the run healthy: {why}.{keep}"
    return f"No trouble seen.{keep}"


def _rest_of_the_story(first: Finding, findings: Sequence[Finding]) -> str:
    """What else is open, in order: what came before the leading finding, and what followed from it. Settings are causes."""
    others = [f for f in findings if f is not first and f.status is Status.OPEN and f.severity is not Severity.INFO]
    others = [f for f in others if f.metric != SETTINGS]
    others.sort(key=lambda f: f.first_step)
    before = [f"{f.name} at step {f.first_step}" for f in others if f.first_step < first.first_step]
    after = [f"{f.name} at step {f.first_step}" for f in others if f.first_step >= first.first_step]
    told = f"; before it {_listed(before)}" if before else ""
    return told + (f"; then {_listed(after)}" if after else "")


def _listed(names: Sequence[str]) -> str:
    """Two by name, the others by number."""
    shown, more = names[:2], len(names) - 2
    return " and ".join(shown) if more < 1 else f"{', '.join(shown)} and {more} more"
