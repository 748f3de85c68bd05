"""Ctrl-C and SIGTERM: the step in progress is finished, a checkpoint is saved, and the run can go on later.

    with Interrupts() as interrupts:
        trainer.add_callback(interrupts)
        trainer.train()
    if interrupts.signal is not None:
        ...

A second Ctrl-C ends the process at once. With several processes the signal may reach them at different steps, so they agree
on it after each step: one that left alone would leave the others waiting.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback

from diagnose.callbacks.output import say

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy, so its class is Any
    """Listens while it is entered."""

    def __init__(self) -> None:
        #: The signal that came; None without one.
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        """Listen. Only the main thread can; elsewhere signals do what they always do."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the signals as they were."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        say(f"{name}: a checkpoint is saved after this step; once more to end at once")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and leave, if a signal came to this or any other process."""
        if args.world_size > 1:
            heard = torch.tensor(float(self.signal or 0), device=args.device)
            torch.distributed.all_reduce(heard, op=torch.distributed.ReduceOp.MAX)
            self.signal = int(heard.item()) or None
        if self.signal is not None:
            control.should_save = True
            control.should_training_stop = True
