"""Findings into the logs that the Trainer already writes: TensorBoard, Weights & Biases, trackio. None of them is needed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from diagnose.model import Finding, Severity, Status
from diagnose.names import OWN

_RANKS = {Severity.INFO: 1, Severity.WARNING: 2, Severity.ERROR: 3}

Write = Callable[[Finding, int], None]


def other_callbacks() -> Sequence[Any]:
    """The callbacks beside us, asked from inside a hook: a Trainer tells its callbacks nothing of each other.

    Returns:
        Those of the nearest caller that is a callback handler; empty without one.
    """
    frame = inspect.currentframe()
    while frame is not None:
        host = frame.f_locals.get("self")
        if type(host).__name__ == "CallbackHandler":
            return tuple(getattr(host, "callbacks", ()))
        frame = frame.f_back
    return ()


def writers(callbacks: Sequence[Any]) -> list[Write]:
    """What can be written to now.

    Args:
        callbacks: of the Trainer.

    Returns:
        Functions that write a finding at a step; each may raise what its library raises.
    """
    found: list[Write] = []
    names = {type(callback).__name__ for callback in callbacks}
    for callback in callbacks:
        if type(callback).__name__ == "TensorBoardCallback" and getattr(callback, "tb_writer", None) is not None:
            found.append(_tensorboard(callback.tb_writer))
    if "WandbCallback" in names and getattr(sys.modules.get("wandb"), "run", None) is not None:
        found.append(_run(sys.modules["wandb"].run))
    if "TrackioCallback" in names and "trackio" in sys.modules:
        found.append(_run(sys.modules["trackio"]))
    return found


def severity_rank(finding: Finding) -> int:
    """0 for what is over, 1 for an info, 2 for a warning, 3 for an error."""
    return _RANKS[finding.severity] if finding.status is Status.OPEN else 0


def _tensorboard(writer: Any) -> Write:
    def write(finding: Finding, step: int) -> None:
        writer.add_scalar(f"{OWN}/{finding.name}", severity_rank(finding), step)
        writer.add_text(f"{OWN}/findings", f"**{finding.code} {finding.name}** {finding.message}", step)
        writer.flush()

    return write


def _run(run: Any) -> Write:
    """A run that takes a dict. Its own step counts log calls, so ours goes along under the name that the Trainer uses."""

    def write(finding: Finding, step: int) -> None:
        run.log({f"{OWN}/{finding.name}": severity_rank(finding), "train/global_step": step})

    return write
