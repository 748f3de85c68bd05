"""CD512 rare-evals: the run is evaluated too rarely for its length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.curves import Curves
from diagnose.model import Change, Evidence, Severity
from diagnose.names import EVAL_LOSS, TRAIN_LOSS
from diagnose.rules.base import Example, threshold
from diagnose.rules.settings import Remark, SettingsRule

_LONG = [2.0 - 0.02 * i for i in range(40)]


@dataclass(frozen=True)
class RareEvals(SettingsRule):
    """The run is evaluated too rarely for its length.

    What it sees:
        Few evaluations, far apart, over the run so far. A run without any is told by `missing-eval`.

    Why it matters:
        The best checkpoint is known only to within the distance of two evaluations, and memorization shows only after two or
        three that rise.

    What to do:
        Set `eval_strategy="steps"` and `eval_steps` to 50 or 100, with `save_steps` the same.

    When it is wrong:
        Evaluations that generate text are dear, and a single pass over much data hardly memorizes.

    References:
        Prechelt 1998, "Early stopping - but when?".
    """

    code: ClassVar[str] = "CD512"
    name: ClassVar[str] = "rare-evals"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[tuple[str, ...]] = ("eval/*",)

    apart: float = threshold(100.0, unit="steps", low=1.0, high=1e6, source="usual is an evaluation each 50 to 100 steps")
    evals: int = threshold(5, unit="evaluations", low=1, high=10_000, source="a fall, a minimum and three that rise")

    firing: ClassVar[tuple[Example, ...]] = (
        Example("once an epoch", {TRAIN_LOSS: _LONG, EVAL_LOSS: ([None] * 12 + [1.7]) * 3 + [None]}, step=50),
        Example("once", {TRAIN_LOSS: _LONG, EVAL_LOSS: [None] * 39 + [1.5]}, step=10),
    )
    silent: ClassVar[tuple[Example, ...]] = (
        Example("every 100", {TRAIN_LOSS: _LONG, EVAL_LOSS: ([None] * 9 + [1.7]) * 4}, step=10),
        Example("often enough", {TRAIN_LOSS: _LONG, EVAL_LOSS: ([None] * 7 + [1.7]) * 5}, step=500),
    )

    def judge(self, curves: Curves) -> Remark | None:
        """The number of evaluations, and how far they are apart."""
        often = max((t for name, t in curves.tracks.items() if name.startswith("eval/")), key=lambda t: t.n + t.n_bad)
        first = min(track.first_step for track in curves.tracks.values())
        n = often.n + often.n_bad
        apart = (curves.last_step - first) / n
        if apart <= self.apart or n >= self.evals:
            return None
        said = "1 evaluation" if n == 1 else f"{n} evaluations"
        return Remark(
            f"{said} in {curves.last_step - first} steps: the best checkpoint and memorization are seen late; "
            "usual is one each 50 to 100 steps",
            (
                Evidence("evaluations", float(n), "<", float(self.evals)),
                Evidence("steps for each of them", apart, ">", self.apart, "steps"),
            ),
            "Evaluate and save each 50 to 100 steps.",
            "the best checkpoint can only be one that was evaluated",
            (
                Change("eval_strategy", curves.settings.get("eval_strategy"), "steps"),
                Change("eval_steps", None, int(self.apart)),
            ),
        )
