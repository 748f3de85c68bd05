"""What there is to train on, and what follows from it: device, precision, attention kernels, optimizer.

Everything chosen is told, and everything can be set: see `TrainConfig`.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import torch

from diagnose.callbacks.qlora.config import Precision, TrainConfig
from diagnose.callbacks.qlora.lengths import has_flash_attention
from diagnose.callbacks.qlora.plan import parse_bytes
from diagnose.errors import ConfigError, TrainingInputError

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
#: FlashAttention 2 has no kernels for cards older than Ampere.
_AMPERE = (8, 0)


@dataclass(frozen=True)
class Hardware:
    """What the training runs on.

    Attributes:
        device: `cuda` or `cpu`.
        precision: of the computation.
        attention: the kernel, by transformers' name.
        optim: the optimizer, by the Trainer's name.
        gpu_bytes: memory of the GPU; None on a CPU.
        devices: processes that train together, one a GPU.
        rank: of this process among them.
        is_fsdp: whether accelerate was told to shard the model.
        notes: what was chosen, a sentence each.
    """

    device: str
    precision: Precision
    attention: str
    optim: str
    gpu_bytes: int | None
    devices: int
    rank: int
    is_fsdp: bool
    notes: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights that are not quantized, and of the computation."""
        return _DTYPES[self.precision]


def choose_hardware(config: TrainConfig) -> Hardware:
    """Look at the machine, and choose what the settings leave open.

    Raises:
        ConfigError: what was asked for does not work here.
        TrainingInputError: a package is not installed that a setting needs.
    """
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise ConfigError("device is cuda, but torch sees no GPU: install a torch build for your driver, or use --device cpu")
    device = config.device or ("cuda" if has_cuda else "cpu")
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    notes = []
    if device == "cuda" and devices == 1 and (n_gpus := torch.cuda.device_count()) > 1:
        # the Trainer would wrap the model in nn.DataParallel, which TRL refuses
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        notes.append(
            f"one of {n_gpus} GPUs is used; all of them with: torchrun --nproc-per-node {n_gpus} -m diagnose train ..."
        )
    _check_packages(config, device)
    if device == "cpu":
        notes.append("no GPU: training on the CPU, which is slow for all but tiny models")
    precision, why = _precision(config, device)
    attention = config.attention or _attention(device, precision)
    optim = config.optim or ("paged_adamw_8bit" if device == "cuda" else "adamw_torch")
    notes.append(f"{precision} compute{why}, {attention} attention, {optim}")
    gpu_bytes = parse_bytes(config.gpu_memory) if config.gpu_memory else None
    if gpu_bytes is None and device == "cuda":
        gpu_bytes = torch.cuda.get_device_properties(local_rank()).total_memory
    is_fsdp = os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")
    return Hardware(
        device, precision, attention, optim, gpu_bytes, devices, int(os.environ.get("RANK", "0")), is_fsdp, tuple(notes)
    )


def local_rank() -> int:
    """The number of this process on its machine, and so that of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _precision(config: TrainConfig, device: str) -> tuple[Precision, str]:
    """The precision, and why where it is not the usual one."""
    if config.precision is not None:
        if config.precision == "fp16" and device == "cpu":
            raise ConfigError("precision fp16 needs a GPU: use fp32 or bf16 on the CPU")
        if config.precision == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise ConfigError("this GPU has no bf16: use --precision fp16")
        return config.precision, ""
    if device == "cpu":
        return "fp32", ""
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16", ""
    return "fp16", " (this GPU has no bf16; fp16 overflows easily, so look out for nan)"


def _attention(device: str, precision: Precision) -> str:
    """FlashAttention where its package, the card and the precision allow it, else torch's sdpa, which works everywhere."""
    is_able = device == "cuda" and precision != "fp32" and torch.cuda.get_device_capability() >= _AMPERE
    return "flash_attention_2" if is_able and has_flash_attention() else "sdpa"


def _check_packages(config: TrainConfig, device: str) -> None:
    needed = {"bitsandbytes": config.method == "qlora" or "8bit" in (config.optim or ("8bit" if device == "cuda" else ""))}
    needed["liger_kernel"] = config.liger
    needed["flash_attn"] = config.attention is not None and config.attention.startswith("flash_attention")
    needed["tensorboard"] = config.report_to == "tensorboard"
    for name, is_needed in needed.items():
        if is_needed and importlib.util.find_spec(name) is None:
            package = {"liger_kernel": "liger-kernel", "flash_attn": "flash-attn"}.get(name, name)
            raise TrainingInputError(f"these settings need {package}, which is not installed: pip install {package}")
    if config.packing and not (config.attention or "").startswith("flash") and not has_flash_attention():
        raise ConfigError(
            "packing needs FlashAttention, which keeps packed examples apart: pip install flash-attn, or do not pack"
        )
