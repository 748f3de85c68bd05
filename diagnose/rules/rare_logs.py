"""CD511 rare-logs: the loss is logged too rarely for the length of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Kind, Severity
from diagnose.names import TRAIN_LOSS
from diagnose.rules.base import Example, threshold
from diagnose.rules.settings import Remark, SettingsRule

_FALL = {TRAIN_LOSS: [2.0, 1.8, 1.7, 1.6, 1.5, 1.45, 1.42, 1.4, 1.38, 1.37]}


@dataclass(frozen=True)
class RareLogs(SettingsRule):
    """The loss is logged too rarely for the length of the run.

    What it sees:
        Few logged losses, far apart, over the run so far.

    Why it matters:
        Each logged loss is the mean since the last one: a spike disappears in it, and a run that is lost shows it only a log or
        two later, all of which is paid for.

    What to do:
        Set `logging_steps=10`.

    When it is wrong:
        A log a day into training is all that some loops give; the shape can be judged from it, only later.

    References:
        transformers `TrainingArguments`: `logging_steps` is 500 unless it is set.
    """

    code: ClassVar[str] = "CD511"
    name: ClassVar[str] = "rare-logs"
    severity: ClassVar[Severity] = Severity.INFO
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)
    needs: ClassVar[tuple[str, ...]] = (TRAIN_LOSS,)

    apart: float = threshold(10.0, unit="steps", low=1.0, high=1e6, source="usual is a log each 10 steps")
    logs: int = threshold(
        20, unit="points", low=1, high=10_000, source="the noise of a curve needs about 20 points to be known"
    )

    firing: ClassVar[tuple[Example, ...]] = (
        Example("every 500", _FALL, step=500),
        Example("twice", {TRAIN_LOSS: [2.0, 1.9]}, step=200),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("every 10", _FALL, step=10),
        Example("every 500 of many", {TRAIN_LOSS: [2.0 - 0.02 * i for i in range(30)]}, step=500),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """The number of logs, and how far they are apart."""
        track = curves[TRAIN_LOSS]
        n = track.n + track.n_bad
        if n < 2 or n >= self.logs:  # noqa: PLR2004 - two points, to see a distance
            return None
        apart = (track.last_step - track.first_step) / (n - 1)
        if apart <= self.apart:
            return None
        return Remark(
            f"{n} logs of {TRAIN_LOSS}, one each {apart:.4g} steps, are few: usual is one each {self.apart:g}",
            (
                Evidence(f"points of {TRAIN_LOSS}", float(n), "<", float(self.logs)),
                Evidence("between two of them", apart, ">", self.apart, "steps"),
            ),
            f"Set logging_steps={self.apart:g}.",
            "what is logged rarely is seen late",
            (Change("logging_steps", curves.settings.get("logging_steps"), int(self.apart)),),
        )
