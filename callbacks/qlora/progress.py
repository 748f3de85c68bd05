"""One line an evaluation: the two losses beside each other, which is what to look at."""

from __future__ import annotations

import time
from typing import Any

from transformers import ProgressCallback, TrainerCallback

from diagnose.callbacks.output import say


class Progress(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy, so its class is Any
    """Tells the losses at each evaluation, on the first process; of training the mean of the logs since the last one."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._rate = 0.0
        self._began = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin anew."""
        self._losses, self._began = [], time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Note a training loss, or tell an evaluation."""
        logs = logs or {}
        if "loss" in logs:
            self._losses.append(float(logs["loss"]))
            self._rate = float(logs.get("learning_rate", self._rate))
        if "eval_loss" in logs:
            self._tell(state, f"eval {float(logs['eval_loss']):<7.4g} ")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the training loss alone where there are no evaluations."""
        if args.eval_strategy == "no":
            self._tell(state, "")

    def _tell(self, state: Any, evaluated: str) -> None:
        if not state.is_world_process_zero or not self._losses:
            return
        mean = sum(self._losses) / len(self._losses)
        took = time.monotonic() - self._began
        say(
            f"step {state.global_step:>{len(str(state.max_steps))}}/{state.max_steps}  train {mean:<7.4g} "
            f"{evaluated}rate {self._rate:.2e}  {took:.0f} s"
        )
        self._losses = []


class Bar(ProgressCallback):  # type: ignore[misc]  # likewise
    """The Trainer's progress bar without its dictionaries."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Say nothing: `Progress` does."""
