"""The first steps of a run, logged one by one and judged, so that a training that cannot work ends in a minute.

They are steps of the run itself: same data, same schedule, same folder. Where they pass, nothing is lost or repeated. Judged
are: whether the loss falls beyond its noise, whether memory is left, and whatever the doctor finds. A loss that has not
fallen yet is told and no reason to stop: in a long run the rate is still in its warm-up, and the doctor goes on watching.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from transformers import TrainerCallback

from diagnose.callbacks.curve_doctor import CurveDoctor
from diagnose.callbacks.output import say
from diagnose.stats import robust_scale

#: A preflight is at most this share of a run, and at least this many steps, or there is none.
_SHARE, _LEAST = 4, 9
#: Standard errors by which the end of the preflight must differ from its start to be told from noise. With four, none of the
#: healthy supervised curves in fixtures/ fails by its first 50 logs (tests/test_qlora_treatment.py).
_FALLS, _RISES = 2.0, 4.0
#: Beyond this share of the GPU's memory the next longer batch may not fit.
_FULL = 0.95

Course = Literal["falls", "rises", "flat"]


@dataclass(frozen=True)
class Passed:
    """What a preflight found.

    Attributes:
        is_good: whether to go on.
        lines: what was looked at, a sentence each.
    """

    is_good: bool
    lines: tuple[str, ...]


def course_of(losses: Sequence[float]) -> tuple[Course, float, float]:
    """Which way the loss goes: the median of its last third against that of its first few steps.

    The noise is that from one step to the next, so that a climb does not count as noise.

    Args:
        losses: (n,) one a step, n at least 9; those that are not finite are left out.

    Returns:
        The course, and the two medians, in nats; NaN, and `rises`, with too few finite losses.

    >>> course_of([3.0, 2.9, 3.1, 2.5, 2.4, 2.6, 2.0, 2.1, 1.9])
    ('falls', 3.0, 2.0)
    """
    finite = np.array([loss for loss in losses if math.isfinite(loss)])
    if len(finite) < _LEAST:
        return "rises", math.nan, math.nan
    n_first, n_last = max(3, len(finite) // 10), len(finite) // 3
    first, last = float(np.median(finite[:n_first])), float(np.median(finite[-n_last:]))
    noise = robust_scale(np.diff(finite).tolist()) / math.sqrt(2)
    error = noise * math.sqrt(1 / n_first + 1 / n_last)
    course: Course = "falls" if first - last > _FALLS * error else "rises" if last - first > _RISES * error else "flat"
    return course, first, last


class Preflight(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy, so its class is Any
    """Logs the first steps one by one, judges them, and ends a run that fails.

    Args:
        steps: how many; fewer in a short run.
        doctor: who watches the run, and looks at each row before the preflight does.
        gpu_bytes: memory of the GPU; None on a CPU.
        planned: peak that the memory plan predicts, in bytes; None where there is no plan.
    """

    def __init__(self, steps: int, doctor: CurveDoctor, gpu_bytes: int | None = None, planned: int | None = None) -> None:
        self.steps, self.doctor, self.gpu_bytes, self.planned = steps, doctor, gpu_bytes, planned
        #: What was found; None before the end of the preflight, and where there is none.
        self.result: Passed | None = None
        self._last = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Fit the preflight to the run."""
        self.result = None
        if self.gpu_bytes is not None:
            torch.cuda.reset_peak_memory_stats()  # loading may have needed more than training does
        self._last = min(self.steps, state.max_steps // _SHARE)
        if args.eval_strategy != "no" and self._last > state.eval_steps:
            self._last -= self._last % state.eval_steps  # an evaluation is due there anyway
        if self._last < _LEAST:
            self._last = 0
        if state.is_world_process_zero and self._last > state.global_step:
            say(f"preflight: the first {self._last} steps, logged one by one")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log each step, and evaluate at the end: with its sample, that is the look at the model's own output."""
        if state.global_step <= self._last:
            control.should_log = True
        if state.global_step == self._last:
            control.should_evaluate = args.eval_strategy != "no"
            control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Judge at the last step."""
        if state.global_step != self._last or "loss" not in (logs or {}):
            return
        exam = self.doctor.examination
        self.result = self._judge(state, is_stopped=exam is not None and exam.now.stop)
        if not self.result.is_good:
            control.should_training_stop = True
        if state.is_world_process_zero:
            say(f"preflight {'passed' if self.result.is_good else 'FAILED'}: {'; '.join(self.result.lines)}")

    def _judge(self, state: Any, *, is_stopped: bool) -> Passed:
        rows = [row for row in state.log_history if "loss" in row and row["step"] <= self._last]
        course, first, last = course_of([float(row["loss"]) for row in rows])
        is_lost = math.isnan(first)
        lines = ["the loss is not finite" if is_lost else f"loss {course} from {first:.4g} to {last:.4g}"]
        if course == "flat":
            rates = [float(row.get("learning_rate", 0.0)) for row in rows]
            lines[0] += ", within its noise" + (", the rate still rising" if rates[-1] >= max(rates) > 0 else "")
        is_good = course != "rises" and not is_stopped
        if is_stopped:
            lines.append("the doctor stopped it")
        if self.gpu_bytes is not None:
            peak_bytes = torch.cuda.max_memory_allocated()
            planned = "" if self.planned is None else f", planned {self.planned / 1e9:.1f}"
            lines.append(f"memory {peak_bytes / 1e9:.1f} of {self.gpu_bytes / 1e9:.1f} GB{planned}")
            if torch.cuda.max_memory_reserved() > _FULL * self.gpu_bytes:
                lines.append("nearly full: a batch of longer examples may not fit, and is then halved")
        return Passed(is_good, tuple(lines))
