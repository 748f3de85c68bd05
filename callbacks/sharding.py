"""Whether parameters and gradients are whole on each process: DeepSpeed and FSDP cut them up and forbid looking at them."""

from __future__ import annotations

import os
from typing import Any


def is_sharded(args: Any) -> bool:
    """Whether a training cuts its parameters up between processes.

    Args:
        args: `TrainingArguments`. `accelerate launch` tells by environment variables instead.
    """
    told = any(getattr(args, name, None) for name in ("deepspeed", "fsdp"))
    launched = any(os.environ.get(name, "").lower() == "true" for name in ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP"))
    return told or launched
