"""A training from its settings to its adapter, to be read from top to bottom.

    diagnose train --model Qwen/Qwen2.5-7B --data train.jsonl        # one GPU
    torchrun --nproc-per-node 2 -m diagnose train --model ...        # several
    diagnose train --demo                                            # two minutes on a CPU

Each stage is a function of its own in a file of its own: data, lengths, memory plan, model, preflight, training with the doctor
inside, treatment after a stop, and what is kept at the end.

Not covered: images, preference and reinforcement learning, streamed data, DeepSpeed.
"""

from __future__ import annotations

import gc
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console, RenderableType

from diagnose.callbacks.curve_doctor import CurveDoctor
from diagnose.callbacks.output import say
from diagnose.callbacks.qlora import after
from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.folder import (
    BEST,
    folder_of,
    last_checkpoint,
    open_folder,
    planned_steps,
    resume_point,
    save_settings,
    step_of,
)
from diagnose.callbacks.qlora.hardware import Hardware, choose_hardware
from diagnose.callbacks.qlora.interrupts import Interrupts
from diagnose.callbacks.qlora.out_of_memory import BatchSettings, advice, next_settings
from diagnose.callbacks.qlora.plan import Plan
from diagnose.callbacks.qlora.preflight import Passed, Preflight
from diagnose.callbacks.qlora.progress import Bar, Progress
from diagnose.callbacks.qlora.samples import Samples, prompts_of
from diagnose.callbacks.qlora.stages import Prepared, make_plan, make_trainer, prepare, smaller, steps_of
from diagnose.callbacks.qlora.treatment import cause_of, treat
from diagnose.errors import TrainingInputError
from diagnose.model import Report

_T = TypeVar("_T")


@dataclass(frozen=True)
class Try:
    """One run of the Trainer.

    Attributes:
        config: its settings.
        folder: where it is.
        report: of the doctor.
        preflight: what it found; None where there was none.
        first_loss: of its first step, and so of the weights that it started from; None where it was not logged.
        signal: that interrupted it; None without one.
    """

    config: TrainConfig
    folder: Path
    report: Report
    preflight: Passed | None
    first_loss: float | None
    signal: int | None

    @property
    def failed_preflight(self) -> bool:
        """Whether its first steps were enough to end it."""
        return self.preflight is not None and not self.preflight.is_good


@dataclass(frozen=True)
class Result:
    """What a training came to.

    Attributes:
        tries: each run, in order.
        best: folder of the adapter, or of the model, to use; None where there is none.
        is_good: it ended with an adapter that can be used: trained to the end, or to the point where it began to memorize.
    """

    tries: tuple[Try, ...]
    best: Path | None
    is_good: bool

    @property
    def signal(self) -> int | None:
        """The signal that interrupted the training; None without one."""
        return self.tries[-1].signal


def train(config: TrainConfig, *, resume: bool = False, overwrite: bool = False) -> Result:
    """Train.

    Args:
        config: all settings; `model` and `data` at least.
        resume: go on with the run in the folder, from its last checkpoint.
        overwrite: replace the run in the folder.

    Raises:
        ConfigError: a setting that does not work here.
        TrainingInputError: a model, data or folder that cannot be used; the message says what to do.
    """
    for name in ("model", "data"):
        if not getattr(config, name):
            raise TrainingInputError(f"no {name} given: --{name}, or `{name}:` in the file given with --config")

    # -- the machine, and the folder -----------------------------------------------------------------------------------
    hardware = choose_hardware(config)
    folder = folder_of(config)
    if resume and (folder / BEST).is_dir() and step_of(last_checkpoint(folder)) >= (planned_steps(folder) or math.inf):
        raise TrainingInputError(
            f"{folder} has made all its steps: there is nothing to go on with; start a new run to train longer"
        )
    if hardware.rank == 0:
        open_folder(folder, resume=resume, overwrite=overwrite)
    tell(hardware, *hardware.notes)

    # -- data, lengths, memory: nothing of the model is loaded yet but its configuration ------------------------------------
    prepared = prepare(config)
    tell(hardware, *prepared.notes)
    show(hardware, prepared.lengths)
    batch, plan, notes = make_plan(config, hardware, prepared)
    if plan is not None and hardware.gpu_bytes is not None:
        show(hardware, plan)
    tell(hardware, *notes, _told(config, batch, prepared, hardware))

    # -- train; after a stop for the learning rate, once more --------------------------------------------------------------
    tries: list[Try] = []
    while True:
        if hardware.rank == 0:
            save_settings(folder, config)
        tell(hardware, "", f"== {folder}")
        done, batch = one_try(config, hardware, prepared, batch, plan, folder, resume=resume)
        tries.append(done)
        if done.signal is not None:
            tell(hardware, f"saved. Go on with: diagnose train --resume {folder}")
            return Result(tuple(tries), None, is_good=False)
        cause = cause_of(done.report, failed_preflight=done.failed_preflight)
        treatment = agreed(treat(smaller(batch, config), folder, done.report, cause, first_loss=done.first_loss), hardware)
        if treatment is None:
            break
        tell(hardware, "", *(f"treatment: {line}" for line in treatment.lines))
        config, folder, resume = treatment.config, Path(treatment.config.output_dir or ""), False
        if hardware.rank == 0:
            open_folder(folder, resume=False, overwrite=False)

    # -- what is kept -------------------------------------------------------------------------------------------------------
    folders = [Path(name) for name in config.earlier] + [folder]
    best = agreed(after.best_of(folders), hardware)
    if hardware.rank == 0:
        if config.merge and best is not None:
            after.merge(config, best.parent)
        if len(folders) > 1:
            show(hardware, after.comparison(folders))
        tell(hardware, "", *after.conclusion(done.report, cause, best, config, failed_preflight=done.failed_preflight))
    is_good = best is not None and not done.failed_preflight and (cause is None or cause.name == "memorization")
    return Result(tuple(tries), best, is_good)


def one_try(
    config: TrainConfig,
    hardware: Hardware,
    prepared: Prepared,
    batch: BatchSettings,
    plan: Plan | None,
    folder: Path,
    *,
    resume: bool,
) -> tuple[Try, BatchSettings]:
    """Train once, with smaller batches of the same effective size for as long as the memory does not suffice.

    Returns:
        What came of it, and the batch that did fit.

    Raises:
        TrainingInputError: no smaller batch is left, or the disk is full.
    """
    while True:
        doctor = CurveDoctor(patience=config.patience, grace=config.grace)
        preflight = Preflight(config.preflight, doctor, hardware.gpu_bytes, None if plan is None else plan.peak)
        interrupts = Interrupts()
        examples = prepared.data.validation if prepared.data.validation is not None else prepared.data.train
        prompts = [] if hardware.is_fsdp else prompts_of(examples, prepared.tokenizer, config.n_samples)
        # The doctor first: the preflight asks whether it has stopped the run. The samples after the line of losses.
        callbacks = [doctor, preflight, interrupts, Progress(), Samples(prompts, prepared.tokenizer, folder)]
        checkpoint = resume_point(folder) if resume else None
        if resume:
            said = f"goes on from {checkpoint}" if checkpoint else "has no whole checkpoint: from the beginning"
            tell(hardware, f"{folder} {said}")
        trainer = None
        try:
            trainer = make_trainer(config, hardware, prepared, batch, folder, callbacks)
            if os.isatty(1) and hardware.rank == 0:
                trainer.add_callback(Bar())
            with interrupts, after.disk_errors(folder):
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
                report = doctor.examination.report(folder.name) if doctor.examination is not None else None
                if report is None:
                    raise TrainingInputError("the doctor could not look at this run; set the log level DEBUG for its errors")
                if trainer.state.global_step >= trainer.state.max_steps:
                    interrupts.signal = None  # it came at the last step, and there is nothing left to go on with
                if interrupts.signal is None:
                    is_ended = report.stop.stop or (preflight.result is not None and not preflight.result.is_good)
                    after.keep_best(trainer, config, folder, report, is_ended=is_ended)
            first_loss = after.first_loss(trainer.state.log_history)
            return Try(config, folder, report, preflight.result, first_loss, interrupts.signal), batch
        except torch.OutOfMemoryError as error:
            if hardware.devices > 1:
                raise TrainingInputError(
                    f"out of memory on process {hardware.rank}: start again with --per-device-train-batch-size "
                    f"{max(1, batch.per_device_batch // 2)}, or with --gradient-checkpointing"
                ) from error
            following = next_settings(batch)
            if following is None:
                raise TrainingInputError(advice(prepared.max_length)) from error
            tell(hardware, f"out of memory: {_batch(following)} from here, the same effective batch")
            batch, config, resume = following, smaller(following, config), True
        finally:
            del trainer
            free_memory()


def _told(config: TrainConfig, batch: BatchSettings, prepared: Prepared, hardware: Hardware) -> str:
    n = len(prepared.data.train)
    steps = steps_of(config, n, batch, hardware.devices)
    what = config.method if config.method == "full" else f"{config.method}, rank {config.lora_r}, alpha {config.alpha}"
    asked = config.max_length or prepared.lengths.max_length
    length = f"{prepared.max_length} tokens" + (" (the model takes no more)" if prepared.max_length < asked else "")
    return f"{what}, rate {config.rate:.2g}, {_batch(batch)}, {n:,} examples of at most {length}, {steps:,} steps"


def _batch(batch: BatchSettings) -> str:
    checkpointed = " with gradient checkpointing" if batch.checkpointing else ""
    return f"batch {batch.per_device_batch} x accumulation {batch.accumulation}{checkpointed}"


def tell(hardware: Hardware, *lines: str) -> None:
    """Print, on the first process alone."""
    if hardware.rank == 0:
        for line in lines:
            say(line)


def show(hardware: Hardware, what: RenderableType) -> None:
    """Print a table, on the first process alone."""
    if hardware.rank == 0:
        Console(width=None if os.isatty(1) else 100).print(what)


def agreed(decision: _T, hardware: Hardware) -> _T:
    """The first process's decision: it looks at the disk, which the others may see at another moment."""
    if hardware.devices == 1:
        return decision
    box = [decision]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def free_memory() -> None:
    """Give back what a trainer held, so that the next one finds room."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run(**settings: Any) -> Result:
    """`train` with plain keywords: `run(model="...", data="train.jsonl", learning_rate=1e-4)`."""
    options = {name: settings.pop(name) for name in ("resume", "overwrite") if name in settings}
    return train(TrainConfig(**settings), **options)
