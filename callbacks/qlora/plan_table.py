"""A plan as a Rich table: full, LoRA and QLoRA beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from diagnose.callbacks.qlora.memory import ALLOWANCE, course_bytes

if TYPE_CHECKING:
    from diagnose.callbacks.qlora.plan import Plan

_CAPTION = "at the peak of a step, predicted from the configuration and not measured on a GPU"
_TITLES = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
_PARTS = (
    ("weights", "weights"),
    ("adapters", "adapters"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer (8-bit Adam)"),
    ("activations", "activations"),
    ("head", "head and loss"),
)


def plan_table(plan: Plan) -> Table:
    """The memory of a plan and of those beside it, part by part, in GB (1e9 bytes)."""
    plans = {each.method: each for each in (plan, *plan.beside)}
    order = [plans[method] for method in ("full", "lora", "qlora") if method in plans]
    table = Table(title=f"{plan.shape.name}: memory of a training step, GB a GPU", title_justify="left")
    table.caption, table.caption_justify = _CAPTION, "left"
    table.add_column("")
    for each in order:
        table.add_column(_TITLES[each.method], justify="right", style="bold" if each is plan else "")
    for part, title in _PARTS:
        table.add_row(title, *(gb(getattr(each.parts, part)) for each in order))
    table.add_row("CUDA and the like", *(gb(ALLOWANCE) for _ in order))
    table.add_row("total", *(gb(each.peak + ALLOWANCE) for each in order), style="bold", end_section=True)
    if plan.gpu_bytes is not None:
        table.add_row(
            f"fits {plan.gpu_bytes / 1024**3:.4g} GiB ({gb(plan.gpu_bytes)} GB)",
            *("yes" if each.fits else "no" for each in order),
        )
    table.add_row("batch x accumulation", *(f"{each.per_device_batch} x {each.accumulation}" for each in order))
    if plan.devices > 1:
        table.add_row("GPUs", *(str(each.devices) for each in order))
    table.add_row("checkpointing", *("yes" if each.checkpointing else "no" for each in order))
    table.add_row("max_length", *(f"{each.max_length:,}" for each in order), end_section=True)
    counted = [sum(course_bytes(each.shape.n_params, each.shape.n_lora(each.lora_r), each.method).values()) for each in order]
    table.add_row("as courses count", *(gb(count) for count in counted))
    return table


def gb(n_bytes: float) -> str:
    """Bytes in GB, to a tenth."""
    return f"{n_bytes / 1e9:,.1f}"
