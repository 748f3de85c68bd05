"""What CurveDoctor costs inside a Trainer, beside EarlyStoppingCallback and a callback that does nothing.

    python tests/benchmarks/callback_cost.py            # rows up to 1,000,000 take some minutes
    python tests/benchmarks/callback_cost.py 10000      # fewer rows

A step without a log is its four events, with a model of 28 small adapter weights whose gradients are there: time added to a
handler that has DefaultFlowCallback alone. A logged row is `on_log` of loss, gradient norm and learning rate, with so many rows
behind it. Medians; the machine's noise is in them all alike, so look at the ratios.
"""

from __future__ import annotations

import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import (
    EarlyStoppingCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from diagnose import CurveDoctor

STEPS = 20_000
ROWS = (10, 10_000, 1_000_000)
SAMPLE = 1000


def host(folder: str, *callbacks: TrainerCallback) -> tuple[CallbackHandler, Any, TrainerState, TrainerControl]:
    """A handler with a model and an optimizer whose gradients are there, past `on_train_begin`."""
    args = TrainingArguments(
        output_dir=folder, max_steps=10**9, logging_steps=10**8, save_strategy="no", use_cpu=True, report_to="none",
        metric_for_best_model="loss", load_best_model_at_end=False,
    )  # fmt: skip
    model = nn.ParameterList([nn.Parameter(torch.randn(16, 64)) for _ in range(28)])
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(model.parameters())
    handler = CallbackHandler([DefaultFlowCallback(), *callbacks], model, None, optimizer, None)
    state, control = TrainerState(max_steps=10**9, logging_steps=10**8, is_world_process_zero=True), TrainerControl()
    for callback in callbacks:
        if isinstance(callback, CurveDoctor):
            callback.on_train_begin(args, state, control, model=model, optimizer=optimizer)
    return handler, args, state, control


def step_times(kinds: dict[str, Callable[[], list[TrainerCallback]]]) -> dict[str, list[float]]:
    """Microseconds of each step's four events, the kinds taking turns at every step, so that all meet the same noise."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = {name: host(folder, *make()) for name, make in kinds.items()}
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(STEPS):
            for name, (handler, args, state, control) in hosts.items():
                began = time.perf_counter()
                handler.on_step_begin(args, state, control)
                handler.on_pre_optimizer_step(args, state, control)
                handler.on_optimizer_step(args, state, control)
                handler.on_step_end(args, state, control)
                times[name].append(1e6 * (time.perf_counter() - began))
                state.global_step += 1
        return times


def row_costs(most: int) -> list[tuple[int, float, float]]:
    """Rows behind, median microseconds of a row there, and the doctor's memory in MiB."""
    found = []
    noise = np.random.default_rng(0).normal(0, 0.05, most + SAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        doctor = CurveDoctor(report=False)
        _, args, state, control = host(folder, doctor)
        step, times = 0, []
        marks = [n for n in ROWS if n <= most]
        while marks:
            step += 1
            state.global_step = step
            loss = 1.0 + 2.0 * float(np.exp(-step / (most / 5))) + float(noise[step % most])
            logs = {"loss": loss, "grad_norm": 1.0 + abs(float(noise[-step % most])), "learning_rate": 2e-4}
            began = time.perf_counter()
            doctor.on_log(args, state, control, logs=logs)
            times.append(1e6 * (time.perf_counter() - began))
            times = times[-SAMPLE:]
            if step == marks[0] + min(SAMPLE, marks[0]):
                found.append((marks.pop(0), statistics.median(times), _size(doctor)))
        return found


def _size(doctor: CurveDoctor) -> float:
    """MiB that a pickled copy of the examination takes: a bound that no allocator blurs."""
    return len(pickle.dumps(doctor.examination)) / 1024**2


def main() -> None:
    """Print both tables."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else max(ROWS)
    kinds: dict[str, Callable[[], list[TrainerCallback]]] = {
        "nothing beside DefaultFlowCallback": list,
        "a callback that does nothing": lambda: [TrainerCallback()],
        "EarlyStoppingCallback": lambda: [EarlyStoppingCallback()],
        "CurveDoctor": lambda: [CurveDoctor(report=False)],
    }
    rounds = step_times(kinds)
    base = statistics.median(rounds["nothing beside DefaultFlowCallback"])
    print(f"{'a step without a log':<38}{'median us':>10}{'added us':>10}")
    for name, times in rounds.items():
        print(f"{name:<38}{statistics.median(times):>10.1f}{statistics.median(times) - base:>10.1f}")
    print(f"\n{'rows behind a logged row':<38}{'median us':>10}{'MiB held':>10}")
    for rows, median, size in row_costs(most):
        print(f"{rows:<38,}{median:>10.0f}{size:>10.2f}")


if __name__ == "__main__":
    main()
