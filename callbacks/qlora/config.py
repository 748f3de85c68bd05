"""Every setting of a training in one place: its default, its meaning and its bounds.

    config = TrainConfig(model="Qwen/Qwen2.5-7B", data="train.jsonl", learning_rate=1e-4)

The same names serve in Python, in a YAML file (`learning_rate: 1e-4`) and on the command line (`--learning-rate 1e-4`); they
are the Trainer's own where it has the setting. None stands for "chosen by the trainer", which then tells what it chose.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from diagnose.errors import ConfigError

Method = Literal["qlora", "lora", "full"]
Precision = Literal["bf16", "fp16", "fp32"]

#: Where the learning rate starts: an adapter has few weights, and each must move ten times more than in full fine-tuning.
_START: dict[str, float] = {"qlora": 2e-4, "lora": 2e-4, "full": 2e-5}
#: Up to this rank the usual rate holds; beyond it falls as 1 / rank: 1e-4 at 64, 5e-5 at 128, 2.5e-5 at 256.
_RANK = 32


def _say(default: Any, text: str, *, low: float | None = None, high: float | None = None, open_low: bool = False) -> Any:
    """A setting with its help and its bounds; `open_low` leaves the lower bound itself out."""
    return field(default=default, metadata={"help": text, "low": low, "high": high, "open_low": open_low})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """All settings of a training.

    Raises:
        ConfigError: a value of the wrong kind or out of its bounds.
    """

    model: str = _say("", "folder or hub name of the model")
    data: str = _say("", "examples to train on: a file, a folder, or a hub name")
    validation: str | None = _say(None, "examples to evaluate on; a part of the data if not given")
    method: Method = _say("qlora", "qlora: adapters on a 4-bit model; lora: on a 16-bit one; full: all weights")
    output_dir: str | None = _say(None, "folder of the run; named by its settings if not given, such as runs/qlora-r16-lr2e-4")
    start_from: str | None = _say(None, "folder of an adapter, or of a checkpoint, whose weights to start from")

    learning_rate: float | None = _say(None, "peak rate; by method and rank if not given", low=0, high=10, open_low=True)
    lr_scheduler_type: str = _say("cosine", "course of the rate after the warm-up")
    warmup_ratio: float = _say(0.05, "share of the steps in which the rate rises", low=0, high=0.5)
    num_train_epochs: float = _say(3, "passes over the data", low=0, high=1000, open_low=True)
    max_steps: int | None = _say(None, "end after so many optimizer steps, whatever the epochs", low=1)
    total_train_batch_size: int = _say(16, "examples an optimizer step: per device, times accumulation, times devices", low=1)
    per_device_train_batch_size: int | None = _say(None, "examples at once on a device; by the memory plan if not given", low=1)
    gradient_accumulation_steps: int | None = _say(None, "micro-batches an optimizer step; follows from the batch", low=1)
    max_grad_norm: float = _say(1.0, "gradients are clipped to this norm; 0 for not at all", low=0)
    weight_decay: float = _say(0.01, "pull of the weights to zero", low=0, high=1)
    optim: str | None = _say(None, "the Trainer's optimizer; paged_adamw_8bit on a GPU, adamw_torch on the CPU if not given")
    seed: int = _say(42, "of the weights, the order of the data and the split", low=0)

    max_length: int | None = _say(None, "tokens an example at most; measured if not given", low=8)
    packing: bool = _say(False, "put several short examples into one sequence; needs FlashAttention to keep them apart")
    gradient_checkpointing: bool | None = _say(None, "compute activations again to save memory; by the plan if not given")

    lora_r: int = _say(16, "rank of the adapters", low=1)
    lora_alpha: int | None = _say(None, "scale of the adapters; twice the rank if not given", low=1)
    lora_dropout: float = _say(0.0, "share of the adapters' inputs that is dropped", low=0, high=0.9)
    lora_target: str = _say("all-linear", "layers with adapters, with commas between them")

    quant_type: Literal["nf4", "fp4"] = _say("nf4", "4-bit type of a qlora base")
    double_quant: bool = _say(True, "quantize the scales of the 4-bit weights as well")
    precision: Precision | None = _say(None, "of the computation; bf16 on a GPU that has it, else fp16; fp32 on the CPU")
    device: Literal["cuda", "cpu"] | None = _say(None, "where to train; the GPU if there is one")
    attention: str | None = _say(None, "attention kernel; FlashAttention if installed, else sdpa")
    liger: bool = _say(False, "use Liger's kernels, which have to be installed")
    gpu_memory: str | None = _say(None, "memory to plan for, such as 24GB; the GPU's own if not given")

    logging_steps: int | None = _say(None, "steps between logs; 10, in a short run fewer", low=1)
    eval_steps: int | None = _say(None, "steps between evaluations and checkpoints; 50 to 100, in a short run fewer", low=1)
    save_total_limit: int = _say(3, "checkpoints that are kept; the best one always is", low=1)
    n_samples: int = _say(1, "answers of the model that are shown at each evaluation", low=0, high=20)
    preflight: int = _say(50, "first steps that are logged one by one and judged; 0 for none", low=0)
    patience: int | None = _say(None, "evaluations without a new best before memorization stops the run", low=1)
    grace: float = _say(0.0, "steps at the start, or a share of all below 1, in which the doctor stops nothing", low=0)
    retries: int = _say(2, "new tries when the doctor stops a run for its learning rate", low=0, high=5)
    merge: bool = _say(False, "also save the model with the adapter merged into 16-bit weights")
    report_to: str = _say("tensorboard", "where the Trainer logs to besides its own file; none for nowhere")
    earlier: tuple[str, ...] = _say((), "folders of earlier tries, which the final table compares; set by a retry")

    def __post_init__(self) -> None:
        """Check every value once, so that no later stage has to."""
        for item in dataclasses.fields(self):
            value = _checked(item, getattr(self, item.name))
            object.__setattr__(self, item.name, value)  # a whole number given for a fraction, a list for a tuple

    @property
    def rate(self) -> float:
        """The peak learning rate: as given, else where its method and rank start.

        >>> [TrainConfig(lora_r=r).rate for r in (16, 64, 256)], TrainConfig(method="full").rate
        ([0.0002, 0.0001, 2.5e-05], 2e-05)
        """
        if self.learning_rate is not None:
            return self.learning_rate
        start = _START[self.method]
        return start if self.method == "full" else start * min(1.0, _RANK / self.lora_r)

    @property
    def alpha(self) -> int:
        """LoRA's alpha: as given, else twice the rank."""
        return 2 * self.lora_r if self.lora_alpha is None else self.lora_alpha


def with_values(config: TrainConfig, values: Mapping[str, Any], where: str) -> TrainConfig:
    """A config with some values replaced.

    Args:
        config: to start from.
        values: by name; a dash in a name counts as an underscore.
        where: what to name in an error, such as `run.yaml`.

    Raises:
        ConfigError: a setting that does not exist, or a value that does not fit.
    """
    named = {str(name).replace("-", "_"): value for name, value in values.items()}
    known = [item.name for item in dataclasses.fields(TrainConfig)]
    for name in named:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"{where} has no setting {name!r}{meant}; there are {', '.join(known)}")
    try:
        return dataclasses.replace(config, **named)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def is_switch(name: str) -> bool:
    """Whether a setting is on or off."""
    return bool in _kinds(name)


def load_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file.

    Raises:
        ConfigError: the file cannot be read, or holds no mapping.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold settings, one a line, such as `learning_rate: 1e-4`")
    return found


def dump_yaml(config: TrainConfig) -> str:
    """A config as YAML: every setting that is not at its default, so that the file shows what was chosen."""
    import yaml

    told = {item.name: getattr(config, item.name) for item in dataclasses.fields(config)}
    defaults = {item.name: item.default for item in dataclasses.fields(config)}
    changed = {
        name: list(value) if isinstance(value, tuple) else value for name, value in told.items() if value != defaults[name]
    }
    return str(yaml.safe_dump(changed, sort_keys=False, allow_unicode=True))


def _checked(item: dataclasses.Field[Any], value: Any) -> Any:
    """A value as its field wants it.

    Raises:
        ConfigError: it is of another kind, or out of bounds.
    """
    kinds = _kinds(item.name)
    if value is None and type(None) in kinds:
        return None
    if tuple in kinds:
        if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            return tuple(value)
        raise ConfigError(f"{item.name} must be a list of names, got {value!r}")
    choices = [kind for kind in kinds if isinstance(kind, str)]
    if choices:
        if value not in choices:
            raise ConfigError(f"{item.name} must be one of {', '.join(choices)}, got {value!r}")
        return value
    if bool in kinds:
        if not isinstance(value, bool):
            raise ConfigError(f"{item.name} must be true or false, got {value!r}")
        return value
    if str in kinds:
        if not isinstance(value, str):
            raise ConfigError(f"{item.name} must be text, got {value!r}")
        return value
    return _number(item, value, whole=float not in kinds)


def _number(item: dataclasses.Field[Any], value: Any, *, whole: bool) -> int | float:
    word = "a whole number" if whole else "a number"
    try:
        # YAML takes 2e-4 for text, since it wants a point in a number
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not math.isfinite(number) or (whole and number != int(number)):
        raise ConfigError(f"{item.name} must be {word}, got {value!r}")
    low, high, is_open = (item.metadata.get(key) for key in ("low", "high", "open_low"))
    if (low is not None and (number < low or (is_open and number == low))) or (high is not None and number > high):
        least = "" if low is None else f" {'above' if is_open else 'at least'} {low:g}"
        most = "" if high is None else f"{' and' if least else ''} at most {high:g}"
        raise ConfigError(f"{item.name} must be{least}{most}, got {value!r}")
    return int(number) if whole or number == int(number) else number


def _kinds(name: str) -> set[Any]:
    """The types that a setting may have, and the words where it is a choice."""
    annotation = _HINTS[name]
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)  # a Literal or None is the latter
    parts = get_args(annotation) if is_union else (annotation,)
    kinds: set[Any] = set()
    for part in parts:
        origin = typing.get_origin(part)
        kinds |= set(get_args(part)) if origin is Literal else {origin or part}
    return kinds


_HINTS: dict[str, Any] = typing.get_type_hints(TrainConfig)
