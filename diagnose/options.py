"""What a user chooses for a live doctor, checked when it is said."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnose.config import find_rule, rules_from
from diagnose.errors import ConfigError
from diagnose.model import Finding
from diagnose.rules import Rule
from diagnose.rules.settings import SettingsRule
from diagnose.verdict import STOPPING, StopPolicy


@dataclass(frozen=True, slots=True)
class Options:
    """What every live doctor can be told.

    Args:
        stop: whether to end a lost run. False only tells; names of rules, such as `("nan-loss", "memorization")`, stop for
            these alone.
        patience: evaluations without a new best before memorization stops the run; the rule's own if None.
        grace: steps at the start, or a share of all steps below 1, in which nothing stops the run.
        select: codes, prefixes of codes or names of the rules to apply; all by default.
        ignore: those to leave out.
        thresholds: changed thresholds by rule name.
        on_finding: called with each Finding that is new, graver or resolved.

    Raises:
        ConfigError: a value that makes no sense, or a rule that does not exist.
    """

    stop: bool | str | Sequence[str] = True
    patience: int | None = None
    grace: float = 0
    select: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    thresholds: Mapping[str, Any] | None = None
    on_finding: Callable[[Finding], object] | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense now, not at the first step of a training."""
        if isinstance(self.patience, bool) or not (self.patience is None or isinstance(self.patience, int)):
            raise ConfigError(f"patience must be a number of evaluations, got {self.patience!r}")
        if isinstance(self.grace, bool) or not isinstance(self.grace, int | float) or not 0 <= self.grace < math.inf:
            raise ConfigError(f"grace must be steps, or a share of the steps below 1; got {self.grace!r}")
        if self.on_finding is not None and not callable(self.on_finding):
            raise ConfigError(f"on_finding must be a function of a Finding, got {self.on_finding!r}")
        self.rules()
        self.policy(0)

    @property
    def stops(self) -> bool:
        """Whether anything may end the run."""
        return self.stop is not False

    def rules(self) -> tuple[Rule, ...]:
        """The rules to apply."""
        thresholds = self.thresholds
        if self.patience is not None:
            given = self.thresholds or {}
            if not isinstance(given, Mapping):
                raise ConfigError(f"thresholds must be a table of rules, got {given!r}")
            memorization = given.get("memorization", {})
            if "patience" in memorization:
                raise ConfigError("patience is given twice: as an argument and among the thresholds of memorization")
            thresholds = {**given, "memorization": {**memorization, "patience": self.patience}}
        return rules_from(self.select, self.ignore, thresholds)

    def policy(self, max_steps: int) -> StopPolicy:
        """Which findings stop the run, and from which step on.

        Args:
            max_steps: of the plan; 0 when it is not known, which makes a share of it 0.
        """
        names = STOPPING
        if not isinstance(self.stop, bool):
            wanted = [self.stop] if isinstance(self.stop, str) else self.stop
            if not isinstance(wanted, Sequence) or not all(isinstance(name, str) for name in wanted):
                raise ConfigError(f"stop must be true, false, or names of rules such as 'nan-loss'; got {self.stop!r}")
            rules = [find_rule(name) for name in wanted]
            settings = [rule.name for rule in rules if issubclass(rule, SettingsRule)]
            if settings:
                raise ConfigError(f"{settings[0]} is about a setting and stops no run; stop takes rules about the curve")
            names = frozenset(rule.name for rule in rules)
        grace = self.grace * max(max_steps, 0) if self.grace < 1 else self.grace
        return StopPolicy(names, math.ceil(grace))
