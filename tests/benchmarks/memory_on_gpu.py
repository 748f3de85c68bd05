"""The memory plan against a GPU: QLoRA steps of TRL's SFTTrainer over random 4-bit weights, measured, beside the prediction.

    python tests/benchmarks/memory_on_gpu.py                              1B and 7B shapes, about 3 minutes on a large GPU
    python tests/benchmarks/memory_on_gpu.py --models "Llama 3.1 8B"      another shape of fixtures/record_memory.py
    python tests/benchmarks/memory_on_gpu.py --cpu                        a tiny shape on the CPU: that the script runs, no more

Nothing is downloaded: weights are drawn at random, quantized layer by layer, and never exist as a whole in 16 bits. Printed are
the peak of the tensors (`torch.cuda.max_memory_allocated`), what the allocator holds, and what the GPU has in use beside it:
the last is what `memory.ALLOWANCE` stands for.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import bitsandbytes
import torch
from datasets import Dataset
from peft import LoraConfig
from record_memory import SHAPES
from tiny import tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

from diagnose.callbacks.qlora.memory import ALLOWANCE, predict
from diagnose.callbacks.qlora.shape import shape_of

TINY: dict[str, Any] = SHAPES["TinyLlama 1.1B"] | {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2}

#: batch, length, checkpointing
SETTINGS = ((1, 2048, True), (4, 1024, True), (1, 1024, False))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(SHAPES), default=["TinyLlama 1.1B", "Llama 2 7B"])
    parser.add_argument("--cpu", action="store_true", help="a tiny shape on the CPU")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    if not args.cpu and not torch.cuda.is_available():
        sys.exit("no CUDA GPU is at hand; --cpu runs a tiny shape without one")
    device = torch.device("cpu" if args.cpu else "cuda")
    print(f"torch {torch.__version__}, {'CPU' if args.cpu else torch.cuda.get_device_name()}")
    for name in ["tiny"] if args.cpu else args.models:
        config = TINY if args.cpu else SHAPES[name]
        for batch, length, checkpointing in ((2, 64, True),) if args.cpu else SETTINGS:
            parts = predict(shape_of(config), method="qlora", batch=batch, length=length, checkpointing=checkpointing)
            train(config, device, batch, length, checkpointing=checkpointing)
            setting = f"{name:16} {batch} x {length:5} {'checkpointing' if checkpointing else '             '}"
            if args.cpu:
                print(f"{setting} predicted {parts.total / 2**20:,.0f} MiB, not measured")
                continue
            measured, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            free, total = torch.cuda.mem_get_info()
            beside = total - free - torch.cuda.memory_reserved()
            print(
                f"{setting} measured {measured / 2**20:9,.0f} MiB  predicted {parts.total / 2**20:9,.0f} MiB "
                f"({parts.total / measured - 1:+.1%})  held by the allocator {reserved / 2**20:9,.0f} MiB  "
                f"beside it {beside / 2**20:,.0f} MiB (allowed {ALLOWANCE / 2**20:,.0f})",
                flush=True,
            )


def train(config: dict[str, Any], device: torch.device, batch: int, length: int, *, checkpointing: bool) -> None:
    """Three steps of two micro-batches: from the second on the optimizer has its state, so the peak is of one of those."""
    gc.collect()  # the trainer of the setting before this one
    with tempfile.TemporaryDirectory() as folder:
        ids = [i % 300 for i in range(length)]
        shorter = length - (batch > 1)  # in a batch of several, some are padded
        rows = [{"input_ids": ids[:n], "labels": ids[:n]} for n in [length, shorter] * (3 * batch)]
        args = SFTConfig(
            output_dir=folder,
            max_steps=3,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=2,
            max_length=length,
            bf16=True,
            use_cpu=device.type == "cpu",
            optim="paged_adamw_8bit",
            activation_checkpointing=checkpointing,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
        )
        trainer = SFTTrainer(
            model=model_of(config, device),
            args=args,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer(),
            peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        trainer.train()


def model_of(config: dict[str, Any], device: torch.device) -> nn.Module:
    """A model of random weights whose linear layers, but the head, are in 4 bits on the device."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child is not head:
                setattr(module, name, four_bit(child, device))
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                drawn = torch.randn(parameter.shape, dtype=torch.bfloat16, device=device) * 0.02
                setattr(module, name, nn.Parameter(drawn, requires_grad=False))
    model.tie_weights()
    with device:  # the rotary frequencies are computed, not drawn
        for module in model.modules():
            if hasattr(module, "rotary_emb"):
                module.rotary_emb = type(module.rotary_emb)(config=model.config)
    model.is_loaded_in_4bit = True
    return model


def four_bit(linear: nn.Linear, device: torch.device) -> nn.Module:
    """A 4-bit layer of a linear layer's shape, with double quantization."""
    made = bitsandbytes.nn.Linear4bit(
        linear.in_features, linear.out_features, bias=linear.bias is not None, compute_dtype=torch.bfloat16, quant_type="nf4"
    )
    drawn = torch.randn(linear.out_features, linear.in_features, dtype=torch.bfloat16, device=device) * 0.02
    made.weight = bitsandbytes.nn.Params4bit(drawn, requires_grad=False, quant_type="nf4", compress_statistics=True)
    return made.to(device)


if __name__ == "__main__":
    main()
