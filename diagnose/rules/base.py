"""What a rule is: a frozen description that starts a Watch for each run.

A Rule holds what is said once: code, name, thresholds, examples, prose. A Watch holds what one run has shown so far. It sees
one row at a time and never looks ahead, so feeding rows singly or all at once gives the same findings.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from diagnose.errors import ConfigError
from diagnose.model import Evidence, Finding, Kind, Prescription, Row, Severity, Status

if TYPE_CHECKING:
    from diagnose.curves import Curves

#: What a Watch returns when it has nothing to say.
NOTHING: tuple[Finding, ...] = ()

#: Findings that tell a run's story already: what a rule would say of its end beside them is no news.
STORIES = ("nan-loss", "hidden-nan", "zero-loss", "loss-divergence", "collapsed-loss", "flat-loss", "memorization")

HEADINGS = ("What it sees", "Why it matters", "What to do", "When it is wrong", "References")


def threshold(default: float, *, unit: str, low: float, high: float, source: str) -> Any:
    """A rule's number, written once with its unit, its bounds and where it comes from.

    Args:
        default: used unless the user's configuration says otherwise.
        unit: `sd`, `share`, `points`, `ratio` …
        low: the least value that makes sense.
        high: the greatest.
        source: a paper, or the recorded curves that set it.
    """
    meta = {"unit": unit, "low": low, "high": high, "source": source}
    return dataclasses.field(default=default, metadata=meta)


@dataclass(frozen=True)
class Example:
    """A small curve with what the rule says of it: documentation and test at once.

    Args:
        what: in a few words.
        curves: canonical name to values, all of one length; None leaves the metric out of that row.
        step: steps between rows.
        settings: of the training.
        note_kinds: kinds of reader's notes that the run carries.
    """

    what: str
    curves: Mapping[str, Sequence[float | None]]
    step: int = 10
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    note_kinds: tuple[str, ...] = ()

    def rows(self) -> list[Row]:
        """The example as log rows; `epoch` in `curves` becomes the rows' epoch."""
        n = max(len(v) for v in self.curves.values())
        rows = []
        for i in range(n):
            values = {k: float(v[i]) for k, v in self.curves.items() if k != "epoch" and v[i] is not None}  # type: ignore[arg-type]  # None is filtered out
            epoch = self.curves["epoch"][i] if "epoch" in self.curves else None
            if values:
                rows.append(Row((i + 1) * self.step, values, epoch))
        return rows


@dataclass(frozen=True)
class Rule(ABC):
    """One trouble, as the user will read of it.

    Subclasses are frozen dataclasses whose fields are thresholds; the docstring has the five `HEADINGS`.

    Raises:
        ConfigError: a threshold outside its bounds.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    #: Metrics without which the rule cannot look at all; any one of several is written `a|b`.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Further metrics whose rows the rule wants to see.
    also: ClassVar[tuple[str, ...]] = ()
    #: Kinds of run in which the rule has a meaning.
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.SUPERVISED, Kind.PREFERENCE})
    #: Whether its silence would be mistaken for health: a skip then makes the verdict inconclusive.
    vital: ClassVar[bool] = False
    #: Rules whose finding already tells this story: at the end of a run this one then keeps quiet.
    hushed_by: ClassVar[tuple[str, ...]] = ()
    #: How often a healthy run is meant to set it off, as `P a UNIT: why`: P for normal noise, or an upper bound from recorded
    #: runs; UNIT `point`, `evaluation` or `run`. `none: why` where it does not test against noise. Every rule of the curve (CD1
    #: to CD4) that warns says it, and `fixtures/SCORES.md` sets the measured rate beside it.
    meant_false_alarms: ClassVar[str] = ""
    since: ClassVar[str] = "0.1"
    firing: ClassVar[tuple[Example, ...]] = ()
    silent: ClassVar[tuple[Example, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse a threshold outside its bounds at construction, not at first use."""
        for field in dataclasses.fields(self):
            value, meta = getattr(self, field.name), field.metadata
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"{self.name}.{field.name} must be a number, got {value!r}")
            if not meta["low"] <= value <= meta["high"]:
                raise ConfigError(
                    f"{self.name}.{field.name} must lie between {meta['low']} and {meta['high']} {meta['unit']}, got {value}"
                )

    @abstractmethod
    def start(self) -> Watch:
        """A fresh Watch for one run."""

    @classmethod
    def sections(cls) -> dict[str, str]:
        """The docstring's parts by heading, the opening sentence under `""`."""
        text = re.sub(r"\n {4}", "\n", cls.__doc__ or "")
        parts = re.split(rf"^({'|'.join(HEADINGS)}):?\n", text, flags=re.MULTILINE)
        found = {"": parts[0].strip()}
        for heading, body in zip(parts[1::2], parts[2::2], strict=True):
            found[heading] = re.sub(r"\n {4}", "\n", "\n" + body.rstrip()).strip()
        return found


class Watch:
    """What one rule has seen of one run. Override `see`, `close` or both.

    Args:
        rule: the rule that started it.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def see(self, row: Row, curves: Curves) -> Sequence[Finding]:
        """Look at one more row; `curves` already holds it.

        Returns:
            Findings that are new or changed; `NOTHING` otherwise.
        """
        return NOTHING

    def at_start(self, curves: Curves) -> Sequence[Finding]:
        """What can be said before the first step; must not change the Watch."""
        return NOTHING

    def close(self, curves: Curves) -> Sequence[Finding]:
        """What can only be said of a run as it stands: must not change the Watch, for a live run may go on."""
        return NOTHING

    def skip(self, curves: Curves) -> str | None:
        """Why the rule could not look, though what it needs was logged; None when it could."""
        return None

    def finding(
        self,
        metric: str,
        first_step: int,
        last_step: int,
        message: str,
        *evidence: Evidence,
        severity: Severity | None = None,
        status: Status = Status.OPEN,
        prescription: Prescription | None = None,
    ) -> Finding:
        """A Finding of this rule."""
        return Finding(
            code=self.rule.code,
            name=self.rule.name,
            severity=severity or self.rule.severity,
            metric=metric,
            first_step=first_step,
            last_step=last_step,
            message=message,
            evidence=evidence,
            status=status,
            prescription=prescription,
        )

    def resolved(self, past: Finding, step: int, message: str, severity: Severity = Severity.WARNING) -> tuple[Finding]:
        """The finding `past` as it reads once its trouble is over: no longer an error, with the same key and evidence.

        Args:
            past: as it was last told.
            step: where it was seen to be over.
            message: what was, and what is now.
            severity: the most that it still is.
        """
        milder = min(past.severity, severity, key=lambda s: s.rank)
        return (dataclasses.replace(past, last_step=step, message=message, severity=milder, status=Status.RESOLVED),)
