"""The keys of one log: which is the step, and which canonical metric each of the others tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from diagnose.model import Note
from diagnose.names import ALIASES, TRAIN_LOSS, canonical, is_eval_loss, is_fallback

#: Canonical name of a raw key; None for a key that is no metric or whose metric another key tells better.
Key = str | None

#: Keys that count optimizer steps, best first. `_step` counts W&B's log calls and comes last.
STEP_KEYS = (
    "step", "global_step", "trainer/global_step", "train/global_step", "current_steps", "current_step", "steps", "iteration",
    "iterations", "iter", "it", "num_updates", "n_iter", "update", "batch", "global_step/max_steps", "_step",
)  # fmt: skip
#: A step must fit in 64 bits, with room to spare for the arithmetic on it.
_MOST = 2**62

_TEST = re.compile(r"^test(?=[ _/.-])|(?<=[/_])test$", re.IGNORECASE)
_ORDER = {alias: i for i, alias in enumerate(ALIASES)}


def step_key(counts: Mapping[str, int]) -> str | None:
    """The key that holds the step: the best one that at least half as many rows have as any other such key.

    Args:
        counts: in how many rows each key appears.

    >>> step_key({"iter": 90, "step": 100, "loss": 90}), step_key({"Step": 3}), step_key({"loss": 3})
    ('step', 'Step', None)
    """
    found: dict[str, str] = {}
    for key in counts:
        if isinstance(key, str) and key.strip().lower() in STEP_KEYS:
            found.setdefault(key.strip().lower(), key)
    most = max((counts[key] for key in found.values()), default=0)
    return next((found[name] for name in STEP_KEYS if name in found and 2 * counts[found[name]] >= most), None)


def whole(value: Any) -> int | None:
    """A step as an integer; None for what is no step.

    >>> whole("1/58114"), whole("8,641"), whole(20.0), whole(0.5), whole(10**400)
    (1, 8641, 20, None, None)
    """
    if isinstance(value, str):
        try:
            value = float(value.split("/")[0].strip().replace(",", ""))
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        if not value.is_integer():  # also nan and inf
            return None
        value = int(value)
    return value if -_MOST < value < _MOST else None


def resolve(counts: Mapping[str, int]) -> tuple[dict[str, Key], list[Note]]:
    """Which canonical metric each raw key tells.

    Where several keys tell one metric, the one with most points counts, in doubt the one that comes first in `ALIASES`;
    an epoch average only where there is nothing else. Where only test results are logged again and again, as in DeiT's
    and timm's logs, they are the evaluation.

    Args:
        counts: in how many rows each key appears.

    >>> resolve({"train_loss_step": 90, "train_loss_epoch": 3, "lr": 90})[0]
    {'train_loss_step': 'train/loss', 'train_loss_epoch': None, 'lr': 'train/lr'}
    """
    names: dict[str, Key] = {key: canonical(key) if isinstance(key, str) else None for key in counts}
    notes = []
    tests = {key: _TEST.sub("eval", key) for key in counts if isinstance(key, str) and _TEST.search(key)}
    repeated = any(is_eval_loss(canonical(as_eval) or "") and counts[key] > 1 for key, as_eval in tests.items())
    if repeated and not any(is_eval_loss(name or "") for name in names.values()):
        names |= {key: canonical(as_eval) for key, as_eval in tests.items()}
        notes.append(
            Note("test-as-eval", "no validation loss was logged, but a test loss was: it is read as the validation loss")
        )
    tellers: dict[str, list[str]] = {}
    for key, name in names.items():
        if name is not None:
            tellers.setdefault(name, []).append(key)
    for name, keys in tellers.items():
        if len(keys) > 1:
            best = min(keys, key=lambda k: (is_fallback(k), -counts[k], _ORDER.get(k.lower(), len(_ORDER))))
            others = [k for k in keys if k != best]
            names |= dict.fromkeys(others)
            notes.append(Note("second-telling", f"{', '.join(others)} left out: {best} tells {name} already"))
    if TRAIN_LOSS not in names.values():
        losses = [
            key for key, name in names.items() if name is not None and name.startswith("train/") and name.endswith("loss")
        ]
        if len(losses) == 1:
            names[losses[0]] = TRAIN_LOSS
            notes.append(Note("loss-by-name", f"{losses[0]} is read as the training loss, the only loss of training there is"))
    return names, notes
