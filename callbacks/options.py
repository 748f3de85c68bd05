"""What a user can choose for `CurveDoctor` beside what every live doctor can be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.errors import ConfigError
from diagnose.options import Options


@dataclass(frozen=True, slots=True)
class CallbackOptions(Options):
    """See `CurveDoctor`, whose arguments these are.

    Raises:
        ConfigError: a value that makes no sense, or a rule that does not exist.
    """

    sample_prompts: Sequence[str] = ()
    rollback: bool = False
    report: bool = True

    def __post_init__(self) -> None:
        """Refuse what makes no sense now, not at the first step of a training."""
        Options.__post_init__(self)  # a dataclass with slots is a new class, which a bare super() does not know
        for name in ("report", "rollback"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if isinstance(self.sample_prompts, str) or not all(isinstance(prompt, str) for prompt in self.sample_prompts):
            raise ConfigError(f"sample_prompts must be a list of texts, got {self.sample_prompts!r}")
