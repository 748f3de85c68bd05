"""The stages before the first step: data and lengths, memory plan, TRL's arguments, trainer. `train.py` puts them in order."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.data import TrainingData, load_data
from diagnose.callbacks.qlora.folder import TENSORBOARD
from diagnose.callbacks.qlora.hardware import Hardware
from diagnose.callbacks.qlora.lengths import Lengths, measure_lengths
from diagnose.callbacks.qlora.model import adapters, load_model, load_model_config, load_tokenizer
from diagnose.callbacks.qlora.out_of_memory import BatchSettings
from diagnose.callbacks.qlora.plan import Plan, plan_memory
from diagnose.callbacks.qlora.tokenized import check_labels, tokenize_data
from diagnose.callbacks.qlora.tokenizer import prepare_tokenizer
from diagnose.errors import ConfigError, TrainingInputError

#: Steps between evaluations in a long run, and evaluations that a run should have: enough to see a minimum and that it is left.
_EVAL_LOW, _EVAL_HIGH, _EVALS, _FEW_EVALS = 50, 100, 20, 12
#: Steps between logs, and logs between two evaluations where the run is short.
_LOGGING, _LOGS_AN_EVAL = 10, 3


@dataclass(frozen=True)
class Prepared:
    """What all tries of a training share.

    Attributes:
        data: tokenized, with labels.
        tokenizer: with a pad token of its own.
        model_config: the model's, with the pad token set.
        lengths: of the examples.
        max_length: that the examples were cut to.
        notes: what was recognised, left out and chosen, a sentence each.
    """

    data: TrainingData
    tokenizer: Any
    model_config: Any
    lengths: Lengths
    max_length: int
    notes: tuple[str, ...]


def prepare(config: TrainConfig) -> Prepared:
    """Load the data with the model's own tokenizer, measure it, and cut it to a length.

    Raises:
        TrainingInputError: the data, the tokenizer or the model cannot be trained with.
    """
    model_config = load_model_config(config)
    tokenizer = load_tokenizer(config)
    chosen = prepare_tokenizer(tokenizer, model_config)
    has_template = tokenizer.chat_template is not None
    data = load_data(config.data, config.validation, seed=config.seed, chat=has_template)
    lengths = measure_lengths(data, tokenizer, seed=config.seed)
    max_length = config.max_length or lengths.max_length
    context = getattr(model_config, "max_position_embeddings", None)
    notes = [*chosen]
    if isinstance(context, int) and 0 < context < max_length:
        max_length = context
    data = tokenize_data(data, tokenizer, max_length)
    learned = check_labels(data.train)
    notes.append(f"the loss is on the answers: {learned:.0%} of the tokens")
    return Prepared(data, tokenizer, model_config, lengths, max_length, (*data.notes, *notes))


def make_plan(
    config: TrainConfig, hardware: Hardware, prepared: Prepared
) -> tuple[BatchSettings, Plan | None, tuple[str, ...]]:
    """Batch, accumulation and checkpointing: by the memory plan, or as given.

    Returns:
        The settings; the plan, None for a model that it does not know; and what to know, a sentence each.

    Raises:
        ConfigError: batch and accumulation do not go together.
    """
    total, accumulation = config.total_train_batch_size, config.gradient_accumulation_steps
    batch = config.per_device_train_batch_size
    if accumulation is not None:
        rest = total / (accumulation * hardware.devices)
        if batch is None and (rest < 1 or rest != int(rest)):
            raise ConfigError(
                f"a total_train_batch_size of {total} is not gradient_accumulation_steps {accumulation} x "
                f"{hardware.devices} devices x a whole batch: change one of them"
            )
        batch = int(rest) if batch is None else batch
        total = batch * accumulation * hardware.devices
    if total < hardware.devices:
        raise ConfigError(f"total_train_batch_size {total} is less than one example for each of {hardware.devices} devices")
    if batch is not None:
        batch = min(batch, math.ceil(total / hardware.devices))
    notes: tuple[str, ...] = ()
    plan = None
    try:
        plan = plan_memory(
            prepared.model_config,
            method=config.method,
            max_length=prepared.max_length,
            gpu_bytes=hardware.gpu_bytes,
            effective_batch=total,
            lora_r=config.lora_r,
            lora_dropout=config.lora_dropout,
            devices=hardware.devices,
            checkpointing=config.gradient_checkpointing,
            batch=batch,
            name=config.model,
        )
    except TrainingInputError as error:
        batch = batch or min(4, total)
        steps = math.ceil(total / (batch * hardware.devices))
        checkpointing = True if config.gradient_checkpointing is None else config.gradient_checkpointing
        return BatchSettings(batch, steps, checkpointing), None, (f"no memory plan: {error}",)
    if hardware.gpu_bytes is not None:
        notes = plan.notes
    return BatchSettings(plan.per_device_batch, plan.accumulation, plan.checkpointing), plan, notes


def steps_of(config: TrainConfig, n_examples: int, batch: BatchSettings, devices: int) -> int:
    """Optimizer steps of the whole run, as the Trainer counts them."""
    if config.max_steps is not None:
        return config.max_steps
    batches = math.ceil(n_examples / (batch.per_device_batch * devices))
    return max(1, math.ceil(config.num_train_epochs * math.ceil(batches / batch.accumulation)))


def intervals(config: TrainConfig, n_steps: int) -> tuple[int, int]:
    """Steps between logs, and between evaluations: every 50 to 100 steps, in a short run so that there are about a dozen.

    >>> [intervals(TrainConfig(), n) for n in (60, 240, 1000, 20000)]
    [(2, 5), (7, 20), (10, 50), (10, 100)]
    """
    between = min(_EVAL_HIGH, max(_EVAL_LOW, n_steps // _EVALS))
    evals = config.eval_steps or max(1, min(between, n_steps // _FEW_EVALS))
    return config.logging_steps or max(1, min(_LOGGING, math.ceil(evals / _LOGS_AN_EVAL))), evals


def training_arguments(
    config: TrainConfig, hardware: Hardware, prepared: Prepared, batch: BatchSettings, folder: Path
) -> SFTConfig:
    """TRL's arguments for a run. The Trainer reads the folder of its event files from the environment alone."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / TENSORBOARD)
    n_steps = steps_of(config, len(prepared.data.train), batch, hardware.devices)
    logging_steps, eval_steps = intervals(config, n_steps)
    is_evaluated = prepared.data.validation is not None
    # Without padding no token is wasted; it takes a kernel that keeps the examples of a row apart.
    is_padding_free = hardware.attention.startswith("flash_attention") and batch.per_device_batch > 1 and not config.packing
    with _refusals_told():
        return SFTConfig(
            output_dir=str(folder),
            learning_rate=config.rate,
            lr_scheduler_type=config.lr_scheduler_type,
            warmup_steps=config.warmup_ratio,  # a number below 1 is a share of the steps
            num_train_epochs=config.num_train_epochs,
            max_steps=config.max_steps or -1,
            per_device_train_batch_size=batch.per_device_batch,
            per_device_eval_batch_size=batch.per_device_batch,
            gradient_accumulation_steps=batch.accumulation,
            gradient_checkpointing=batch.checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            max_grad_norm=config.max_grad_norm,
            weight_decay=config.weight_decay,
            optim=hardware.optim,
            bf16=hardware.precision == "bf16",
            fp16=hardware.precision == "fp16",
            use_cpu=hardware.device == "cpu",
            use_liger_kernel=config.liger,
            seed=config.seed,
            max_length=None if is_padding_free else prepared.max_length,  # the examples are cut already
            packing=config.packing,
            padding_free=is_padding_free,
            eval_packing=False,
            logging_steps=logging_steps,
            eval_strategy="steps" if is_evaluated else "no",
            eval_steps=eval_steps if is_evaluated else None,
            save_strategy="steps",
            save_steps=eval_steps,
            save_total_limit=config.save_total_limit,
            load_best_model_at_end=is_evaluated,
            metric_for_best_model="eval_loss" if is_evaluated else None,
            greater_is_better=False if is_evaluated else None,
            report_to=config.report_to,
            dataloader_pin_memory=hardware.device == "cuda",
            ddp_find_unused_parameters=False if hardware.devices > 1 else None,
        )


def make_trainer(
    config: TrainConfig,
    hardware: Hardware,
    prepared: Prepared,
    batch: BatchSettings,
    folder: Path,
    callbacks: Sequence[TrainerCallback],
) -> SFTTrainer:
    """TRL's trainer with the model loaded. `train.py` puts its own lines in place of the Trainer's dictionaries."""
    args = training_arguments(config, hardware, prepared, batch, folder)
    model = load_model(config, hardware, prepared.model_config)
    with _refusals_told():
        trainer = SFTTrainer(
            model=model,
            args=args,
            train_dataset=prepared.data.train,
            eval_dataset=prepared.data.validation,
            processing_class=prepared.tokenizer,
            peft_config=adapters(config),
            callbacks=list(callbacks),
        )
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    if hardware.precision == "fp16":
        # TRL makes the adapters of a 4-bit model bf16, whose gradients the fp16 loss scaler cannot unscale.
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
    if hardware.is_fsdp and config.method != "full":
        # Adapters are wrapped apart from the frozen layers: FSDP flattens what it wraps, and both must not mix.
        from peft.utils.other import fsdp_auto_wrap_policy

        trainer.accelerator.state.fsdp_plugin.auto_wrap_policy = fsdp_auto_wrap_policy(trainer.model)
    return trainer


def smaller(batch: BatchSettings, config: TrainConfig) -> TrainConfig:
    """A config that keeps a batch which was found to fit, so that a new try or a resumed run begins with it."""
    return dataclasses.replace(
        config,
        per_device_train_batch_size=batch.per_device_batch,
        gradient_accumulation_steps=batch.accumulation,
        gradient_checkpointing=batch.checkpointing,
    )


@contextmanager
def _refusals_told() -> Iterator[None]:
    """Turn what TRL or PEFT refuse into a ConfigError: the values come from the user.

    Raises:
        ConfigError: in place of what was raised.
    """
    try:
        yield
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"these settings do not work: {' '.join(str(error).split())[:400]}") from error
