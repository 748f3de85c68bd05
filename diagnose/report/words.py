"""How numbers, steps, comparisons and changes read: the words that the text and the Markdown report share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING

from diagnose.model import OTHER_KIND, SETTINGS, UNTOLD, Kind, RateDirection, Report, Status

if TYPE_CHECKING:
    from diagnose.model import Change, Evidence, Finding, Setting, Skip, StopDecision

#: Control characters, lone surrogates and the marks that turn the direction of text: they could rewrite a terminal's screen.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: How our own signs read where only ASCII can be written.
_ASCII = str.maketrans({"→": "->", "…": "...", "·": "-", "≥": ">=", "≤": "<=", "≈": "~", "—": "-"})

#: How the codes of rules about settings begin, and what they are called together.
_SETTINGS_CODES = "CD5"
_SETTINGS = "settings checks"
#: Unknown settings that are named; of the rest the number is enough.
_UNTOLD_TOLD = 4
#: Rules that are named where they could not look for one reason; of more than these some are told by number.
_FEW = 4

#: Below this a setting reads as a power of ten, as people write learning rates.
_LEAST_PLAIN = 1e-2


def plain(text: str, *, is_ascii: bool = False) -> str:
    r"""A text on one line that no terminal takes for a command.

    Line breaks and tabs become spaces, other control characters their escapes.

    Args:
        text: from a log, a path or a rule.
        is_ascii: whether the output can hold nothing but ASCII.

    >>> plain("run\x1b[31m\nsecond line"), plain("6 → 2", is_ascii=True)
    ('run\\x1b[31m second line', '6 -> 2')
    """
    text = _UNSAFE.sub(lambda m: m.group().encode("unicode_escape").decode(), re.sub(r"[\r\n\t]+", " ", text))
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode() if is_ascii else text


def amount(value: float) -> str:
    """A number with four significant digits.

    >>> amount(0.123456), amount(1200.0), amount(float("inf")), amount(2e-05)
    ('0.1235', '1200', 'inf', '2e-05')
    """
    return f"{value:.4g}"


def setting(value: Setting) -> str:
    """A setting's value as people write it; `unknown` for None.

    >>> setting(0.0002), setting(0.05), setting(3), setting(None)
    ('2e-4', '0.05', '3', 'unknown')
    """
    if value is None:
        return "unknown"
    if not isinstance(value, float):
        return str(value)
    if not 0 < abs(value) < _LEAST_PLAIN:
        return f"{value:g}"
    digits, power = f"{value:.3e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def steps(finding: Finding) -> str:
    """Where a finding lies: `step 40`, or `steps 40 to 90`; empty for a setting, which has no place."""
    if finding.metric == SETTINGS:
        return ""
    if finding.first_step == finding.last_step:
        return f"step {finding.first_step}"
    return f"steps {finding.first_step} to {finding.last_step}"


def finding_line(finding: Finding) -> str:
    """One finding on one line: `CD101 nan-loss (error): train/loss is nan since step 7`."""
    word = "resolved" if finding.status is Status.RESOLVED else finding.severity.value
    return plain(f"{finding.code} {finding.name} ({word}): {finding.message}")


def evidence(item: Evidence) -> str:
    """A comparison: `train/loss above its best: 9 > 2.5 nats at step 40`."""
    compared = f"{amount(item.value)} {item.relation}" + ("" if item.limit is None else f" {amount(item.limit)}")
    unit = f" {item.unit}" if item.unit else ""
    where = "" if item.step is None else f" at step {item.step}"
    return f"{item.what}: {compared}{unit}{where}"


def change(item: Change) -> str:
    """What to set, without the setting's name: `2e-4 → 6.7e-5, divided by 3`."""
    by = _factor(item.factor)
    if item.after is None:
        return by or "leave unset"
    told = f"{setting(item.before)} → {setting(item.after)}" if item.before is not None else f"set to {setting(item.after)}"
    return f"{told}, {by}" if by else told


def _factor(factor: float | None) -> str:
    """`divided by 3` or `times 3`, with two digits; empty where there is no ratio."""
    if factor is None or not math.isfinite(factor) or factor <= 0 or factor == 1:
        return ""
    return f"divided by {1 / factor:.2g}" if factor < 1 else f"times {factor:.2g}"


def stop(decision: StopDecision) -> str:
    """What a live doctor does: `stops this run at step 40, for CD401 memorization`."""
    if not decision.stop or decision.step is None:
        return "does not stop this run"
    why = "" if decision.because is None else f", for {decision.because.code} {decision.because.name}"
    return f"stops this run at step {decision.step}{why}"


def rate(report: Report) -> str:
    """The verdict on the learning rate; empty where it is not known, or where the cure says it already.

    `up, 3 times (2e-4 to 5e-4), sure to 88 %: …`
    """
    found = report.learning_rate
    cured = report.prescription is not None and any(c.setting == "learning_rate" for c in report.prescription.changes)
    if found is None or found.direction is RateDirection.UNKNOWN or cured:
        return ""
    word = found.direction.value
    if found.direction is RateDirection.HOLD or found.factor is None:
        return f"{word}: {found.reason}"
    moved = f"times {found.factor:.0f}" if found.direction is RateDirection.UP else f"divided by {found.factor:.0f}"
    between = "" if found.before is None or found.after is None else f" ({found.before:g} to {found.after:g})"
    return f"{word}, {moved}{between}, sure to {100 * found.confidence:.0f} %: {found.reason}"


def skips(skipped: Iterable[Skip]) -> str:
    """Which rules could not look, those of one reason together; the many that want settings are told as one.

    Rules for preference and reinforcement learning are not missed in a supervised run, and not told; empty without others.
    """
    reasons: dict[str, list[str]] = {}
    untold: dict[str, None] = {}
    for skip in skipped:
        if skip.reason == OTHER_KIND + Kind.SUPERVISED.value:
            continue
        if skip.reason.startswith(UNTOLD):
            untold |= dict.fromkeys(skip.reason.removeprefix(UNTOLD).split(", "))
            continue
        names = reasons.setdefault(skip.reason, [])
        name = _SETTINGS if skip.code.startswith(_SETTINGS_CODES) else skip.name
        if name not in names:
            names.append(name)
    if untold:
        first = list(untold)[:_UNTOLD_TOLD]
        more = f" and {len(untold) - len(first)} more settings" if len(untold) > len(first) else ""
        reasons[UNTOLD + ", ".join(first) + more] = [_SETTINGS]
    if not reasons:
        return ""
    return "Could not look: " + "; ".join(f"{_few(names)} ({reason})" for reason, names in reasons.items())


def _few(names: Sequence[str]) -> str:
    """All names of a few, else the first of them and how many more."""
    if len(names) <= _FEW:
        return ", ".join(names)
    return f"{', '.join(names[: _FEW - 2])} and {len(names) - _FEW + 2} more"


def grouped(findings: Iterable[Finding]) -> list[tuple[str, list[Finding]]]:
    """Findings of one kind together under one letter: open ones first, the most serious leading, each by its first step."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for f in sorted(findings, key=lambda f: (f.status.value, -f.severity.rank, f.first_step, f.code)):
        groups.setdefault((f.code, f.metric, f.severity, f.status), []).append(f)
    letters = chain(ascii_uppercase, ascii_lowercase, repeat("?"))
    return [(next(letters), group) for group in groups.values()]


def count(n: int, one: str) -> str:
    """A number with its noun.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{n} {one}" if n == 1 else f"{n} {one}s"
