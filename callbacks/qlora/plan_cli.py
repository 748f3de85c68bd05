"""The command `diagnose plan`: its options, and a configuration to a plan. Prints nothing; `cli.py` does.

The plan needs neither torch nor transformers; the check, `--check`, needs both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from diagnose.callbacks.qlora.memory import METHODS
from diagnose.callbacks.qlora.plan import Plan, parse_bytes, plan_memory
from diagnose.callbacks.qlora.shape import read_config
from diagnose.errors import MissingExtraError, TrainingInputError

if TYPE_CHECKING:
    from rich.console import RenderableType

_DESCRIPTION = """\
Plan the memory of a fine-tuning before anything is loaded: batch, accumulation
and checkpointing that fit the GPU, for full fine-tuning, LoRA and QLoRA beside
each other. Needs no GPU and no weights, only the model's config.json."""

#: So much of another library's message is told, in characters.
_TOLD = 200

_EPILOG = """\
exit codes: 0 planned, whether it fits or not; 2 could not run, as with an unknown model"""


def main(argv: Sequence[str], make: Callable[..., argparse.ArgumentParser]) -> RenderableType:
    """A plan as something that a rich Console prints.

    Args:
        argv: what follows `diagnose plan`.
        make: the class of parser.

    Raises:
        ConfigError: an option that makes no sense.
        MissingExtraError: `--check` without the train extra.
        TrainingInputError: a model that is unknown or not planned for.
    """
    args = parser(make).parse_args(argv)
    config = read_config(args.model)
    plan = plan_memory(
        config,
        method=args.method,
        max_length=args.max_length,
        gpu_bytes=None if args.gpu is None else parse_bytes(args.gpu),
        effective_batch=args.effective_batch,
        lora_r=args.lora_r,
        devices=args.devices,
        checkpointing=args.checkpointing,
        batch=args.batch,
        name=args.model,
    )
    if not args.check:
        return plan
    from rich.console import Group
    from rich.text import Text

    return Group(plan, Text(check(plan, config)))


def parser(make: Callable[..., argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The options of the command.

    Args:
        make: the class of parser.
    """
    made = make(
        prog="diagnose plan",
        usage="diagnose plan --model MODEL [--gpu 24GB] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    made.add_argument("--model", required=True, help="a folder or file with config.json, or a name in the hub's local cache")
    made.add_argument("--gpu", metavar="SIZE", help="memory of one GPU, such as 24GB")
    made.add_argument("--method", choices=METHODS, default="qlora", help="what to plan for (qlora)")
    made.add_argument("--max-length", type=int, default=2048, metavar="TOKENS", help="longest example, in tokens (2048)")
    made.add_argument(
        "--batch", type=int, metavar="N", help="examples a GPU and micro-batch; the largest that fits if not given"
    )
    made.add_argument("--effective-batch", type=int, default=16, metavar="N", help="examples a step, over all GPUs (16)")
    made.add_argument("--lora-r", type=int, default=16, metavar="R", help="rank of the adapters (16)")
    made.add_argument("--devices", type=int, default=1, metavar="N", help="GPUs, each with the whole model (1)")
    made.add_argument(
        "--checkpointing",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="recompute layers in the backward pass; only where needed if not given",
    )
    made.add_argument("--check", action="store_true", help="count a step on tensors without content too, about 20 s")
    return made


def check(plan: Plan, config: dict[str, Any]) -> str:
    """Count the planned step on fake tensors, and compare.

    Raises:
        MissingExtraError: torch, transformers or peft is not installed.
        TrainingInputError: the installed transformers cannot build the model, or PEFT cannot adapt it.
    """
    try:
        from diagnose.callbacks.qlora.fake_step import count_step
    except ImportError as error:
        raise MissingExtraError(
            f"--check needs torch, transformers and peft ({error}): pip install 'curve-doctor[train]'"
        ) from error
    try:
        count = count_step(
            config,
            method=plan.method,
            batch=plan.per_device_batch,
            length=plan.max_length,
            checkpointing=plan.checkpointing,
            lora_r=plan.lora_r,
            accumulated=plan.accumulation > 1,
        )
    except Exception as error:  # whatever transformers and PEFT raise for a model that they do not know
        told = " ".join(str(error).split())[:_TOLD]
        raise TrainingInputError(
            f"--check cannot build {plan.shape.name} ({type(error).__name__}: {told}); the plan without --check needs no model"
        ) from error
    return (
        f"counted on tensors without content: {count.peak / 1e9:,.1f} GB at the peak, predicted {plan.peak / 1e9:,.1f} GB "
        f"({plan.peak / count.peak - 1:+.1%}); CUDA and the like come on top"
    )
