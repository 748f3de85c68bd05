"""After a run: the best weights with their card, a merged model if wanted, and the comparison of the tries."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import RenderableType
from safetensors import SafetensorError

from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.folder import BEST, MERGED
from diagnose.callbacks.qlora.model import told
from diagnose.callbacks.qlora.samples import read_samples
from diagnose.compare import compare
from diagnose.errors import TrainingInputError
from diagnose.model import Finding, Report, Run
from diagnose.readers import read
from diagnose.report.compare import ComparisonView
from diagnose.report.markdown import escape, report_markdown

#: Samples that a card shows.
_SAMPLES = 6
#: A disk that is full, and a quota that is used up.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def keep_best(trainer: Any, config: TrainConfig, folder: Path, report: Report, *, is_ended: bool) -> None:
    """Save the weights of the best checkpoint, which the Trainer has loaded, as `best/`; and the log.

    Nothing is kept of a run that was ended before its first evaluation, since its last weights are those that it was ended for;
    nor of one that was never better than where it started.

    Args:
        trainer: after its training.
        config: of the run.
        folder: of the run.
        report: on it.
        is_ended: by the doctor, or by its preflight.
    """
    trainer.save_state()
    best, first = trainer.state.best_metric, first_loss(trainer.state.log_history)
    if best is None and (trainer.args.load_best_model_at_end or is_ended):
        return
    if is_ended and best is not None and first is not None and best > first:
        return
    trainer.save_model(str(folder / BEST))
    if trainer.args.process_index == 0:
        (folder / BEST / "README.md").write_text(card(config, folder, report), encoding="utf-8")


def card(config: TrainConfig, folder: Path, report: Report) -> str:
    """A model card: how to use it, its settings, its curve, the doctor's report and samples."""
    run = read(folder)[0]
    kind = "a model" if config.method == "full" else "an adapter"
    library = "transformers" if config.method == "full" else "peft"
    best = report.best
    which = "the end of the run" if best is None else f"step {best.step}, where {best.metric} was lowest ({best.value:.4g})"
    head = ["---", f"library_name: {library}", "tags:", "- curve-doctor", "- sft", "---", ""]
    if not Path(config.model).exists():
        head[1:1] = [f"base_model: {config.model}"]
    lines = [
        *head,
        f"# {folder.name}",
        "",
        f"{kind.capitalize()} for {config.model}, fine-tuned on {Path(config.data).name} with `diagnose train` (method "
        f"{config.method}). The weights are those of {which}.",
        "",
        "## Settings",
        "",
        "| setting | value |",
        "|---|---|",
    ]
    shown = {"model", "data", "validation", "method", "start_from", "seed"}
    shown |= {"lora_r", "lora_dropout", "lora_target"} if config.method != "full" else set()
    shown |= {"quant_type", "double_quant"} if config.method == "qlora" else set()
    told_settings = {name: value for name, value in dataclasses.asdict(config).items() if name in shown and value is not None}
    told_settings |= {name: value for name, value in report.settings.items() if value is not None}
    lines += [f"| {name} | {escape(str(value))} |" for name, value in told_settings.items()]
    lines += ["", "## Curve", "", *_curve_table(run), "", "## What the doctor says", ""]
    lines.append(report_markdown(report, run).replace("\n### ", "\n#### ").replace("## ", "### ", 1))
    samples = read_samples(folder)
    if samples:
        lines += ["", "## Samples", "", "| step | asked | said | expected |", "|---|---|---|---|"]
        for row in samples[-_SAMPLES:]:
            cells = (" ".join(str(row[key]).split()) for key in ("prompt", "answer", "expected"))
            lines.append(f"| {row['step']} | " + " | ".join(escape(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _curve_table(run: Run) -> list[str]:
    """Both losses at each evaluation."""
    evals = run.series.get("eval/loss")
    if evals is None:
        return ["There was no evaluation."]
    train = run.series.get("train/loss")
    epochs = dict(zip(run.series["epoch"].step, run.series["epoch"].value, strict=True)) if "epoch" in run.series else {}
    lines = ["| step | epoch | train/loss | eval/loss |", "|---|---|---|---|"]
    for step, value in zip(evals.step, evals.value, strict=True):
        before = [] if train is None else [v for s, v in zip(train.step, train.value, strict=True) if s <= step]
        trained = f"{before[-1]:.4g}" if before else ""
        epoch = f"{epochs[step]:.2f}" if step in epochs else ""
        lines.append(f"| {step} | {epoch} | {trained} | {value:.4g} |")
    return lines


def merge(config: TrainConfig, folder: Path) -> None:
    """Save the model with the best adapter merged into its 16-bit weights, as `merged/`.

    The adapter of a qlora run is merged into the 16-bit base, not into the 4-bit one that it was trained on; these differ by
    the rounding of the quantization.

    Raises:
        TrainingInputError: there is no adapter to merge, or the model cannot be loaded.
    """
    if config.method == "full" or not (folder / BEST / "adapter_config.json").is_file():
        return
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with told(config.model):
        base = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.bfloat16, device_map={"": "cpu"})
    with disk_errors(folder):
        PeftModel.from_pretrained(base, str(folder / BEST)).merge_and_unload().save_pretrained(str(folder / MERGED))
        AutoTokenizer.from_pretrained(str(folder / BEST)).save_pretrained(str(folder / MERGED))


def best_of(folders: Sequence[Path]) -> Path | None:
    """The `best/` of the try whose best evaluation was lowest; None where no try kept any."""
    kept = [folder for folder in folders if (folder / BEST).is_dir()]
    return min(kept, key=_lowest, default=folders[-1]) / BEST if kept else None


def _lowest(folder: Path) -> float:
    rows = _rows(folder)
    return min((float(row["eval_loss"]) for row in rows if "eval_loss" in row), default=math.inf)


def first_loss(log_history: Sequence[Mapping[str, Any]]) -> float | None:
    """The first training loss of a Trainer's log, if it is that of the first step; None otherwise."""
    first = next((row for row in log_history if "loss" in row), None)
    return float(first["loss"]) if first is not None and first.get("step") == 1 else None


def _rows(folder: Path) -> list[dict[str, Any]]:
    try:
        state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return list(state.get("log_history", []))


def comparison(folders: Sequence[Path]) -> RenderableType:
    """The tries beside each other, as `diagnose compare` shows them."""
    runs = [dataclasses.replace(run, id=folder.name) for folder in folders for run in read(folder)[:1]]
    return ComparisonView(compare(runs)) if len(runs) > 1 else ""


def conclusion(
    report: Report, cause: Finding | None, best: Path | None, config: TrainConfig, *, failed_preflight: bool
) -> list[str]:
    """The last words: where the weights are, and what to do if there are none."""
    lines = []
    if cause is not None and cause.name == "memorization":
        lines.append("stopped where it began to memorize: the best checkpoint is the result, and a retry would not help")
    elif cause is not None:
        cure = cause.prescription or report.prescription
        why = "no try is left" if config.retries < 1 else "no new try would mend this"
        lines.append(f"stopped for {cause.name}; {why}. {'' if cure is None else cure.advice}".rstrip())
    elif failed_preflight:
        lines.append(
            "the preflight failed and no finding says why: look at the data and the samples, or try a third of the rate"
        )
    if best is None:
        lines.append("nothing was kept: no evaluation was better than the start")
        return lines
    kind = "model" if config.method == "full" else "adapter"
    lines.append(f"best {kind}: {best}")
    if config.merge and (best.parent / MERGED).is_dir():
        lines.append(f"merged model: {best.parent / MERGED}")
    return lines


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Tell a full disk in one line.

    Raises:
        TrainingInputError: there is no space left.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        # safetensors and torch tell it in words alone
        is_full = (isinstance(error, OSError) and error.errno in _NO_SPACE) or any(
            words in str(error) for words in ("No space left", "os error 28", "file write failed", "unexpected pos")
        )
        if not is_full:
            raise
        free = shutil.disk_usage(folder).free / 1e9
        raise TrainingInputError(
            f"no space left for {folder} ({free:.1f} GB free): make room and go on with --resume {folder}, or write elsewhere "
            "with --output-dir; --save-total-limit 1 keeps fewer checkpoints"
        ) from error
