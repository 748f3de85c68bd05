"""Runs and reports made by hand, one for each verdict, so that how they look does not hang on any rule."""

import math
from collections.abc import Sequence

import numpy as np

from diagnose.model import (
    Best,
    Change,
    Crash,
    Evidence,
    Finding,
    Note,
    Prescription,
    Report,
    Run,
    Series,
    Severity,
    Skip,
    Status,
    StopDecision,
    Verdict,
)


def series(name: str, steps: Sequence[int], values: Sequence[float]) -> Series:
    return Series(name, np.asarray(steps), np.asarray(values, dtype=float), np.ones(len(steps), dtype=np.int64))


def run(id: str, **curves: tuple[Sequence[int], Sequence[float]]) -> Run:
    named = {key.replace("_", "/", 1): value for key, value in curves.items()}
    return Run(id, "trainer_state.json", {name: series(name, *value) for name, value in named.items()})


STEPS = range(10, 610, 10)
EVALS = range(100, 700, 100)
FALLING = [0.3 + 2.2 * math.exp(-s / 150) for s in STEPS]


def report(id: str, verdict: Verdict, headline: str, *findings: Finding, **more: object) -> Report:
    given = {
        "skips": (),
        "crashes": (),
        "notes": (),
        "best": None,
        "stop": StopDecision(stop=False),
        "prescription": None,
        "settings": {"learning_rate": 2e-4},
        "last_step": 600,
        "n_points": len(STEPS),
    } | more
    return Report(id=id, source="trainer_state.json", verdict=verdict, headline=headline, findings=findings, **given)


MEMORIZATION = Finding(
    "CD401",
    "memorization",
    Severity.ERROR,
    "eval/loss",
    400,
    600,
    "eval/loss rose to 1.9 from its minimum 1.2 at step 300 while train/loss fell by 61 %",
    (
        Evidence("eval/loss above its minimum", 0.58, ">=", 0.1, "share", 600),
        Evidence("train/loss fallen since the minimum", 0.61, ">", 0.02, "share", 600),
    ),
)
SPIKES = [
    Finding(
        "CD201",
        "loss-spike",
        Severity.WARNING,
        "train/loss",
        step,
        step + 20,
        f"train/loss rose to 6.1 at step {step}, 12 robust sd above the last 32 points, and came back",
        (Evidence("train/loss above its recent level", 12.4, ">", 8.0, "sd", step),),
        Status.RESOLVED,
    )
    for step in (110, 210, 330)
]
NAN = Finding(
    "CD101",
    "nan-loss",
    Severity.WARNING,
    "train/loss",
    600,
    600,
    "train/loss is nan at step 600",
    (Evidence("train/loss", math.nan, "is not finite", step=600),),
)
CURE = Prescription(
    (Change("learning_rate", 2e-4, 6.7e-5, 1 / 3), Change("num_train_epochs", 3, 2, 2 / 3)),
    "Use the best checkpoint, not the last one, and train for less long.",
    "eval/loss was lowest at step 300 and has risen since",
    ("do not judge the last checkpoint",),
    300,
    "runs/lora-r16-lr6.7e-5-ep2",
)

SICK_RUN = run(
    "sft/lora-r16-lr2e-4",
    train_loss=(STEPS, FALLING),
    eval_loss=(EVALS, [1.6, 1.3, 1.2, 1.4, 1.7, 1.9]),
)
SICK = report(
    SICK_RUN.id,
    Verdict.SICK,
    f"memorization: {MEMORIZATION.message}. Best checkpoint: step 300 (eval/loss 1.2).",
    MEMORIZATION,
    best=Best(300, 1.2, "eval/loss"),
    stop=StopDecision(True, 500, MEMORIZATION, 300),
    prescription=CURE,
    skips=(
        Skip("CD304", "no-gradient", "the log has no train/grad_norm"),
        Skip("CD204", "exploding-gradient", "the log has no train/grad_norm"),
        Skip("CD303", "zero-learning-rate", "the log has no train/lr"),
    ),
)

#: Spikes beyond what a linear scale shows, an end in NaN, markup and control characters in the id and in a note.
WATCH_RUN = run(
    "[red]spiky[/red]\x1b[31m",
    train_loss=(STEPS, [*(v * (40 if s in (110, 210, 330) else 1) for s, v in zip(STEPS, FALLING, strict=True)), math.nan][1:]),
)
WATCH = report(
    WATCH_RUN.id,
    Verdict.WATCH,
    "nan-loss: train/loss is nan at step 600.",
    *SPIKES,
    NAN,
    notes=(Note("steps-go-back", "steps go back from 400\nto 300: resumed; 10 points\x07 of the first attempt dropped", 300),),
)

HEALTHY_RUN = run("healthy", train_loss=(STEPS, FALLING), eval_loss=(EVALS, [1.6, 1.3, 1.1, 1.0, 0.95, 0.93]))
HEALTHY = report(
    "healthy",
    Verdict.HEALTHY,
    "No trouble seen. Best checkpoint: step 600 (eval/loss 0.93).",
    best=Best(600, 0.93, "eval/loss"),
)

INCONCLUSIVE_RUN = run("runs/2024/short", train_lr=([1, 2], [1e-4, 2e-4]))
INCONCLUSIVE = report(
    INCONCLUSIVE_RUN.id,
    Verdict.INCONCLUSIVE,
    "No trouble seen, but not enough to call the run healthy: nan-loss could not look: the log has no train/loss.",
    skips=(Skip("CD101", "nan-loss", "the log has no train/loss"),),
    crashes=(Crash("CD704", "ZeroDivisionError: division by zero", "Traceback (most recent call last): ..."),),
    last_step=2,
    n_points=0,
)

ALL = ((SICK, SICK_RUN), (WATCH, WATCH_RUN), (HEALTHY, HEALTHY_RUN), (INCONCLUSIVE, INCONCLUSIVE_RUN))
