"""The folder of a run: named by what was changed, refused where it holds another run, and where its checkpoints are.

| file | what it is |
|---|---|
| run.yaml | the settings; `diagnose train --config run.yaml` repeats the run |
| checkpoint-N/ | weights, optimizer and log at step N |
| tensorboard/ | event files |
| trainer_state.json, curve_doctor.json | the log, and what the doctor said of it |
| samples.jsonl | the model's answers at each evaluation |
| best/ | the adapter, or the model, of the best checkpoint, with its card |
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

from diagnose.callbacks.qlora.config import TrainConfig, dump_yaml, load_yaml, with_values
from diagnose.errors import ConfigError, TrainingInputError
from diagnose.prescribe import compact

SETTINGS_FILE = "run.yaml"
BEST = "best"
MERGED = "merged"
TENSORBOARD = "tensorboard"
#: What a run leaves in its folder, and so what `--overwrite` may remove.
_OURS = (
    *(SETTINGS_FILE, BEST, MERGED, TENSORBOARD, "samples.jsonl"),
    *("trainer_state.json", "curve_doctor.json", "README.md", "training_args.bin"),
)
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
#: Settings that name a folder when they are not at their default, and the token that `diagnose compare` reads there.
_TOKENS = {
    "num_train_epochs": "ep",
    "max_steps": "steps",
    "total_train_batch_size": "batch",
    "lora_alpha": "alpha",
    "max_length": "len",
    "max_grad_norm": "clip",
    "weight_decay": "wd",
    "warmup_ratio": "warmup",
    "seed": "seed",
}


def run_name(config: TrainConfig) -> str:
    """A name that tells the run from others by its settings: the method, rank and rate, and what is not at its default.

    >>> run_name(TrainConfig(method="lora")), run_name(TrainConfig(learning_rate=1e-4, num_train_epochs=2, lora_r=64))
    ('lora-r16-lr2e-4', 'qlora-r64-lr1e-4-ep2')
    """
    parts = [config.method] + ([] if config.method == "full" else [f"r{config.lora_r}"])
    parts.append(f"lr{compact(float(config.rate))}")
    defaults = {item.name: item.default for item in dataclasses.fields(config)}
    for name, token in _TOKENS.items():
        value = getattr(config, name)
        if value != defaults[name] and value is not None:
            parts.append(f"{token}{compact(value)}")
    return "-".join(parts)


def folder_of(config: TrainConfig) -> Path:
    """The run's folder."""
    return Path(config.output_dir).expanduser() if config.output_dir else Path("runs") / run_name(config)


def free_folder(config: TrainConfig) -> Path:
    """A folder for a new try: named by the settings, beside the first one, with a number where the name is taken."""
    base = folder_of(config).parent / run_name(config)
    n = 1
    folder = base
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}-try{n}")
    return folder


def open_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Make the folder of a run, or refuse one that is taken.

    Raises:
        TrainingInputError: it holds a run and is neither to be resumed nor overwritten; or it holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise TrainingInputError(f"{folder} is a file, not a folder: give another --output-dir")
    if folder.is_dir() and any(folder.iterdir()) and not resume:
        if not (folder / SETTINGS_FILE).is_file():
            raise TrainingInputError(f"{folder} holds files that are no run of `diagnose train`: give another --output-dir")
        if not overwrite and _holds_a_run(folder):
            raise TrainingInputError(
                f"{folder} holds a run{_where(folder)}: continue it with --resume, replace it with --overwrite, "
                "or give another --output-dir"
            )
        _clear(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingInputError(f"cannot make the folder {folder}: {error.strerror or error}") from None


def save_settings(folder: Path, config: TrainConfig) -> None:
    """Write `run.yaml`."""
    told = dataclasses.replace(config, output_dir=str(folder))
    (folder / SETTINGS_FILE).write_text(dump_yaml(told), encoding="utf-8")


def resumed_config(folder: Path, changed: dict[str, Any]) -> TrainConfig:
    """The settings of a run that is to go on.

    Args:
        folder: of the run.
        changed: settings given again, which replace those of the run.

    Raises:
        ConfigError: it holds no run.
    """
    if not (folder / SETTINGS_FILE).is_file():
        raise ConfigError(f"{folder} holds no run of `diagnose train` to resume: it has no {SETTINGS_FILE}")
    saved = with_values(TrainConfig(), load_yaml(folder / SETTINGS_FILE), str(folder / SETTINGS_FILE))
    return with_values(saved, changed | {"output_dir": str(folder)}, "the command line")


def last_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint that is whole; None without one. One that was cut off while it was written is passed over."""
    return next((path for path in reversed(checkpoints(folder)) if _is_whole(path)), None)


def resume_point(folder: Path) -> Path | None:
    """The checkpoint to go on from: the last whole one that has steps left; from the end the Trainer would make one more.

    Returns:
        None where the run has to begin anew.
    """
    planned = planned_steps(folder)
    left = [path for path in checkpoints(folder) if _is_whole(path) and (planned is None or step_of(path) < planned)]
    return left[-1] if left else None


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, by step."""
    found = [(int(m[1]), path) for path in folder.glob("checkpoint-*") if (m := _CHECKPOINT.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def step_of(checkpoint: Path | None) -> int:
    """The step of a checkpoint; 0 for none."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def planned_steps(folder: Path) -> int | None:
    """The steps that a run has planned, as its last checkpoint tells; None without one."""
    last = last_checkpoint(folder)
    if last is None:
        return None
    steps = json.loads((last / "trainer_state.json").read_text(encoding="utf-8")).get("max_steps")
    return steps if isinstance(steps, int) and steps > 0 else None


def _holds_a_run(folder: Path) -> bool:
    """Whether there is anything to lose: a start that failed leaves no more than its settings."""
    return bool(checkpoints(folder)) or any((folder / name).exists() for name in ("trainer_state.json", BEST))


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        weights = [*checkpoint.glob("*.safetensors"), *checkpoint.glob("pytorch_model*")]
        return bool(weights) and all(_is_safetensors(path) for path in weights if path.suffix == ".safetensors")
    except (OSError, ValueError):
        return False


def _is_safetensors(path: Path) -> bool:
    """Whether a file of tensors is as long as its header says."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size < path.stat().st_size:
            return False
        header = json.loads(file.read(size))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return path.stat().st_size == 8 + size + max(ends, default=0)


def _where(folder: Path) -> str:
    """` that reached step 120`; nothing where no checkpoint tells."""
    last = last_checkpoint(folder)
    return "" if last is None else f" that reached step {step_of(last)}"


def _clear(folder: Path) -> None:
    """Remove what a run left, and nothing else."""
    for path in [*checkpoints(folder), *(folder / name for name in _OURS)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
