"""The trainer on a CUDA GPU: memory against the plan, speed against plain TRL, and what the doctor costs. One call, 12 minutes.

    python tests/benchmarks/qlora_gpu.py                    1B and 7B shapes, NF4 with adapters, random weights
    python tests/benchmarks/qlora_gpu.py --device cpu       a tiny shape on the CPU: checks the script, measures no memory

Three variants of each case: TRL's SFTTrainer alone, ours without the doctor, ours with it. Memory is the peak of
`torch.cuda.max_memory_allocated` over the steps; speed is tokens a second without the first steps. A case that would begin
after the time is up is left out, and told.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, PrinterCallback, TrainerCallback, set_seed
from trl import SFTTrainer

from diagnose.callbacks.curve_doctor import CurveDoctor
from diagnose.callbacks.qlora import stages
from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.data import TrainingData
from diagnose.callbacks.qlora.demo import make_tokenizer
from diagnose.callbacks.qlora.hardware import Hardware, choose_hardware
from diagnose.callbacks.qlora.model import adapters, keep_trainable
from diagnose.callbacks.qlora.out_of_memory import BatchSettings
from diagnose.callbacks.qlora.plan import plan_memory

#: Hidden size, layers, heads, key and value heads, MLP width, vocabulary: TinyLlama 1.1B, Llama 2 7B, and one for the CPU.
SHAPES = {
    "1B": (2048, 22, 32, 4, 5632, 32000),
    "7B": (4096, 32, 32, 32, 11008, 32000),
    "tiny": (64, 2, 4, 2, 128, 512),
}
#: Batch, length, gradient checkpointing.
CASES = {
    "cuda": [
        *(("1B", 4, 1024, False), ("1B", 8, 1024, True), ("1B", 2, 2048, False)),
        *(("7B", 1, 1024, True), ("7B", 4, 1024, True), ("7B", 2, 2048, True)),
    ],
    "cpu": [("tiny", 4, 64, False), ("tiny", 2, 128, True)],
}
VARIANTS = ("TRL", "ours", "ours, doctor")
STEPS, WARM_UP = 12, 4


@dataclass(frozen=True)
class Measured:
    """One variant of one case.

    Attributes:
        shape: of the model.
        batch: examples at once.
        length: tokens an example.
        checkpointing: whether layers are computed again.
        variant: of `VARIANTS`.
        tokens_per_s: without the first steps.
        peak: bytes; 0 on a CPU.
        planned: bytes that the plan predicts.
    """

    shape: str
    batch: int
    length: int
    checkpointing: bool
    variant: str
    tokens_per_s: float
    peak: int
    planned: int


class Clock(TrainerCallback):
    """Times the steps after the first ones, and the memory of all."""

    def __init__(self, device: str) -> None:
        self.device, self.began, self.seconds, self.peak = device, 0.0, 0.0, 0

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == WARM_UP:
            self.began = self._now()
        if state.global_step == STEPS:
            self.seconds = self._now() - self.began
            self.peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else 0


def llama_config(shape: str) -> LlamaConfig:
    """The configuration of a shape."""
    hidden, layers, heads, kv_heads, mlp, vocab = SHAPES[shape]
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=mlp,
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


def random_4_bit(config: LlamaConfig, hardware: Hardware) -> Any:
    """A model with random weights, its linear layers but the head in NF4: nothing is written to disk or downloaded."""
    import bitsandbytes as bnb

    set_seed(0)
    with torch.device(hardware.device):
        model = AutoModelForCausalLM.from_config(config, dtype=hardware.dtype, attn_implementation=hardware.attention)
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        made = bnb.nn.Linear4bit(
            module.in_features,
            module.out_features,
            bias=False,
            compute_dtype=hardware.dtype,
            compress_statistics=True,
            quant_type="nf4",
            device="meta",
        )
        weight = module.weight.data.to("cpu")
        module.weight = None  # the 16-bit weights go before the next layer's are packed
        made.weight = bnb.nn.Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4")
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made.to(hardware.device))
    model.is_loaded_in_4bit = True
    model.config.quantization_config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model.config.use_cache = False
    for parameter in model.parameters():
        parameter.requires_grad = False
    keep_trainable(model)
    return model


def examples(config: LlamaConfig, n: int, length: int) -> Dataset:
    """Random tokens, every one learned, every example as long as it may be."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(3, config.vocab_size, (n, length), generator=draw).tolist()
    return Dataset.from_dict({"input_ids": ids, "labels": ids})


def measure(model: Any, shape: str, batch: int, length: int, checkpointing: bool, device: str) -> list[Measured]:
    """All variants of one case.

    Args:
        model: without adapters; it is without them again afterwards.
        shape: its name.
        batch: examples at once.
        length: tokens an example.
        checkpointing: whether layers are computed again.
        device: `cuda` or `cpu`.
    """
    config = TrainConfig(
        method="qlora", max_steps=STEPS, max_length=length, total_train_batch_size=batch, device=device, report_to="none"
    )
    hardware = choose_hardware(config)
    settings = BatchSettings(batch, 1, checkpointing)
    data = TrainingData(examples(model.config, STEPS * batch, length), None, "text", ())
    tokenizer = make_tokenizer([f"word{i}" for i in range(300)])
    prepared = stages.Prepared(data, tokenizer, model.config, None, length, ())  # type: ignore[arg-type]  # no lengths needed
    plan = plan_memory(
        model.config, max_length=length, gpu_bytes=None, effective_batch=batch, batch=batch, checkpointing=checkpointing
    )
    found = []
    original = stages.load_model
    stages.load_model = lambda *_: model  # the model is made, not loaded
    try:
        for variant in VARIANTS:
            clock = Clock(device)
            with tempfile.TemporaryDirectory() as folder:
                if variant == "TRL":
                    args = stages.training_arguments(config, hardware, prepared, settings, Path(folder))
                    args.save_strategy = "no"
                    trainer = SFTTrainer(
                        model=model,
                        args=args,
                        train_dataset=data.train,
                        processing_class=tokenizer,
                        peft_config=adapters(config),
                        callbacks=[clock],
                    )
                    trainer.remove_callback(PrinterCallback)  # which would print a line a step
                else:
                    callbacks = [clock] if variant == "ours" else [CurveDoctor(report=False, stop=False), clock]
                    trainer = stages.make_trainer(config, hardware, prepared, settings, Path(folder), callbacks)
                    trainer.args.save_strategy = "no"
                trainer.train()
            speed = batch * length * (STEPS - WARM_UP) / clock.seconds
            found.append(Measured(shape, batch, length, checkpointing, variant, speed, clock.peak, plan.peak))
            model = trainer.model.unload()
            del trainer
    finally:
        stages.load_model = original
    return found


def report(found: Sequence[Measured], console: Console) -> None:
    """Print the tables."""
    memory = Table(title="peak memory of ours with the doctor against the plan, GB", title_justify="left")
    for column in ("shape", "batch x length", "checkpointing", "planned", "measured", "error"):
        memory.add_column(column, justify="right")
    speed = Table(title="tokens a second", title_justify="left")
    for column in ("shape", "batch x length", "checkpointing", *VARIANTS, "ours / TRL", "doctor's cost"):
        speed.add_column(column, justify="right")
    cases = list(dict.fromkeys((m.shape, m.batch, m.length, m.checkpointing) for m in found))
    for case in cases:
        rows = {m.variant: m for m in found if (m.shape, m.batch, m.length, m.checkpointing) == case}
        head = (case[0], f"{case[1]} x {case[2]}", "yes" if case[3] else "no")
        ours = rows["ours, doctor"]
        error = f"{ours.planned / ours.peak - 1:+.1%}" if ours.peak else "-"
        memory.add_row(*head, f"{ours.planned / 1e9:.2f}", f"{ours.peak / 1e9:.2f}" if ours.peak else "-", error)
        speeds = [rows[variant].tokens_per_s for variant in VARIANTS]
        ratio, cost = speeds[2] / speeds[0], 1 - speeds[2] / speeds[1]
        speed.add_row(*head, *(f"{value:,.0f}" for value in speeds), f"{ratio:.3f}", f"{cost:+.1%}")
    console.print(memory, speed)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=12.0, help="no case begins later (12)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers here as well")
    args = parser.parse_args()
    console, began = Console(width=120), time.monotonic()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --device cpu checks the script alone")
    where = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or "CPU"
    console.print(f"{where}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}")
    found: list[Measured] = []
    model, made = None, ""
    for shape, batch, length, checkpointing in CASES[args.device]:
        if time.monotonic() - began > 60 * args.minutes * 0.85:
            console.print(f"left out for want of time: {shape}, {batch} x {length}")
            continue
        if made != shape:
            model = None  # its memory first
            config = TrainConfig(method="qlora", device=args.device, report_to="none")
            model, made = random_4_bit(llama_config(shape), choose_hardware(config)), shape
        try:
            found += measure(model, shape, batch, length, checkpointing, args.device)
        except torch.OutOfMemoryError:
            console.print(f"out of memory: {shape}, {batch} x {length}")
            model, made = None, ""
    report(found, console)
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(m) for m in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
