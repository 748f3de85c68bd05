"""The rules, in the order of their codes."""

from __future__ import annotations

from diagnose.rules.base import Example, Rule, Watch, threshold
from diagnose.rules.nan_loss import NanLoss

#: Every rule class, in the order of their codes. An explicit tuple: a rule exists when it stands here.
RULES: tuple[type[Rule], ...] = (NanLoss,)

__all__ = ["RULES", "Example", "Rule", "Watch", "threshold"]
