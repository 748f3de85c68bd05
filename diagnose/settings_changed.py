"""What is known of the settings of several runs, and which of them changed from one run to another.

A setting is taken from the run's own settings, else from the name of its folder, such as `lora-r16-lr2e-4`; the learning rate
at last from the log itself. What one run tells and another does not is not known to have changed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from diagnose.model import Run, Setting
from diagnose.rows import peak_learning_rate

RATE = "learning_rate"
#: What a training did, not what was asked of it.
_OUTCOMES = frozenset({"best_metric", "best_global_step", "best_model_checkpoint", "num_input_tokens_seen"})
#: Where and how often the run was looked at, and what chance gave it: shown, but nobody hopes for a lower loss from it.
_NO_CAUSE = frozenset(
    {"load_best_model_at_end", "metric_for_best_model", "greater_is_better", "evaluation_strategy", "seed"}
    | {"per_device_eval_batch_size", "gradient_checkpointing"}
)
_NO_CAUSE_PREFIXES = ("logging_", "eval_", "save_")
#: The factors of the batch, and its other names.
_BATCH_PARTS = frozenset({"per_device_train_batch_size", "gradient_accumulation_steps", "world_size"})
_BATCH_TOTAL = "total_train_batch_size"
_BATCH_NAMES = frozenset({_BATCH_TOTAL, "train_batch_size", "batch_size"})
BATCH = _BATCH_PARTS | _BATCH_NAMES

#: Two numbers this close are one: files hold them with few digits.
_CLOSE = 1e-3
#: Logged rates this close may be one: the highest one logged is below the peak where logs are rare.
_CLOSE_LOGGED = 1.2
#: A rate in a name is that of the run when the highest one logged lies between these multiples of it.
_NAMED_LOW, _NAMED_HIGH = 0.5, 1.05

#: What lies outside is no learning rate, …
_LEAST_RATE, _MOST_RATE = 1e-15, 1e6
#: … and what is larger is no number that is compared as one.
_HUGE = 1e300

_NUMBER = r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
_BOUND = r"(?:^|(?<=[-_,. ]))"
#: `r16` and `b16` need their number at once: single letters are common in names.
_TOKEN = re.compile(
    rf"{_BOUND}(?:(lr|rank|alpha|ep|epochs?|clip|warmup|seed|wd|bs|batch)[-_=]?|(r|b)=?){_NUMBER}(?=$|[-_,. ])", re.IGNORECASE
)
_METHOD = re.compile(rf"{_BOUND}(qlora|lora|full)(?=$|[-_,. ])", re.IGNORECASE)
_SHORT = {
    "lr": RATE,
    "r": "lora_r",
    "rank": "lora_r",
    "alpha": "lora_alpha",
    "ep": "num_train_epochs",
    "epoch": "num_train_epochs",
    "epochs": "num_train_epochs",
    "clip": "max_grad_norm",
    "warmup": "warmup_steps",
    "seed": "seed",
    "wd": "weight_decay",
    "b": "batch_size",
    "bs": "batch_size",
    "batch": "batch_size",
}


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one run's settings.

    Args:
        values: by the Trainer's own names.
        is_rate_logged: whether the learning rate is only the highest that was logged.
        is_told: whether the run tells its settings itself, so that what is not told is as in the other runs or by default.
        named_rate: a rate in the folder's name that the log contradicts.
    """

    values: Mapping[str, Setting]
    is_rate_logged: bool = False
    is_told: bool = True
    named_rate: float | None = None

    @property
    def rate(self) -> float | None:
        """The peak learning rate; None when it is not known."""
        value = self.values.get(RATE)
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class Changed:
    """A setting that is not the same in all runs.

    Args:
        setting: by the Trainer's own name.
        values: of each run, in their order; None where it is not told.
        counts: whether it may have made the difference: not what only follows from another one, nor how the run was logged.
    """

    setting: str
    values: tuple[Setting, ...]
    counts: bool


def settings_of(run: Run) -> Known:
    """What is known of a run's settings: its own, those in its folder's name, and the highest logged learning rate."""
    values = {name: value for name, value in run.settings.items() if name not in _OUTCOMES and value is not None}
    named = from_names([*re.split(r"[\\/]", run.source), *run.id.split("/")])
    configured, in_name = _rate(values.pop(RATE, None)), _rate(named.pop(RATE, None))
    logged = _rate(peak_learning_rate(run))
    known = named | values
    if configured is not None:
        return Known(known | {RATE: configured})
    if in_name is not None and (logged is None or _NAMED_LOW * in_name <= logged <= _NAMED_HIGH * in_name):
        return Known(known | {RATE: in_name}, is_told=False)
    if logged is None:
        return Known(known, is_told=False)
    return Known(known | {RATE: float(f"{logged:.3g}")}, is_rate_logged=True, is_told=False, named_rate=in_name)


def from_names(names: Iterable[str]) -> dict[str, Setting]:
    """Settings in the names of folders; a later name counts before an earlier one.

    >>> from_names(["lora-r16-lr2e-4"])
    {'method': 'lora', 'lora_r': 16, 'learning_rate': 0.0002}
    >>> from_names(["runs", "full_lr=0.001_bs8", "checkpoint-40"])
    {'method': 'full', 'learning_rate': 0.001, 'batch_size': 8}
    >>> from_names(["flair-3", "lr-finder", "year2024"])
    {}
    """
    found: dict[str, Setting] = {}
    for name in names:
        method = _METHOD.search(name)
        if method:
            found["method"] = method[1].lower()
        for long, short, number in _TOKEN.findall(name):
            found[_SHORT[(long or short).lower()]] = int(number) if number.isdecimal() else float(number)
    return found


def changed_settings(runs: Sequence[Known]) -> tuple[Changed, ...]:
    """The settings that at least two of the runs tell differently, those that count first."""
    names = dict.fromkeys(name for known in runs for name in known.values)
    differing = [name for name in names if any(differs(name, a, b) for a, b in combinations(runs, 2))]
    idle = _followers(differing, runs) | {name for name in differing if _is_no_cause(name)}
    found = [Changed(name, tuple(known.values.get(name) for known in runs), name not in idle) for name in differing]
    return tuple(sorted(found, key=lambda c: (not c.counts, c.setting != RATE)))


def differs(name: str, a: Known, b: Known) -> bool:
    """Whether two runs both tell a setting, and differently."""
    one, other = a.values.get(name), b.values.get(name)
    if one is None or other is None:
        return False
    if name == RATE and a.rate and b.rate:
        return not is_one_rate(a.rate, b.rate, is_logged=a.is_rate_logged or b.is_rate_logged)
    return not _is_same(one, other)


def is_one_rate(a: float, b: float, *, is_logged: bool) -> bool:
    """Whether two rates above 0 may be one; the highest that was logged tells the peak less closely."""
    return abs(math.log(a / b)) <= math.log(_CLOSE_LOGGED if is_logged else 1 + _CLOSE)


def unconnected(runs: Sequence[Known], changed: Sequence[Changed], most: int) -> tuple[int, int, tuple[str, ...]] | None:
    """Two runs that no chain of the runs connects in which each differs from the one before in at most `most` settings.

    Args:
        runs: in the order of `changed`.
        changed: what `changed_settings` says of them.
        most: settings that may change at once.

    Returns:
        The two runs of two such groups that differ least, and what changed between them; None where all are connected.
    """
    names = [c.setting for c in changed if c.counts]
    apart = {
        (i, j): tuple(name for name in names if differs(name, runs[i], runs[j])) for i, j in combinations(range(len(runs)), 2)
    }
    group = list(range(len(runs)))
    for (i, j), between in apart.items():
        if len(between) <= most and group[i] != group[j]:
            group = [group[i] if g == group[j] else g for g in group]
    gaps = [(len(between), i, j) for (i, j), between in apart.items() if group[i] != group[j]]
    if not gaps:
        return None
    _, i, j = min(gaps)
    return i, j, apart[i, j]


def _number(value: Setting) -> float | None:
    """A value as a finite number; None for all else, True and False among them."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _HUGE:
        return float(value)
    return None


def _rate(value: Setting) -> float | None:
    """A value as a learning rate above 0; None for all else."""
    number = _number(value)
    return number if number is not None and _LEAST_RATE < number < _MOST_RATE else None


def _is_same(one: Setting, other: Setting) -> bool:
    a, b = _number(one), _number(other)
    return one == other or (a is not None and b is not None and math.isclose(a, b, rel_tol=_CLOSE))


def _is_no_cause(name: str) -> bool:
    return name in _NO_CAUSE or name.startswith(_NO_CAUSE_PREFIXES)


def _followers(differing: Sequence[str], runs: Sequence[Known]) -> set[str]:
    """What differs only because something else does, so that one choice counts once."""
    changed = set(differing)
    found: set[str] = set()
    if changed & _BATCH_PARTS:
        # the same batch in other pieces trains alike
        totals = [known.values.get(_BATCH_TOTAL) for known in runs]
        found |= _BATCH_PARTS if None not in totals and _BATCH_TOTAL not in changed else _BATCH_NAMES
    elif _BATCH_TOTAL in changed:
        found |= _BATCH_NAMES - {_BATCH_TOTAL}
    if changed & (BATCH - found | {"num_train_epochs"}):
        found.add("max_steps")
    if "warmup_ratio" in changed:
        found.add("warmup_steps")
    if "lora_r" in changed and len({_scaling(known) for known in runs}) == 1:
        found.add("lora_alpha")
    return found


def _scaling(known: Known) -> float | None:
    """What LoRA multiplies its update with: alpha / r."""
    rank, alpha = _number(known.values.get("lora_r")), _number(known.values.get("lora_alpha"))
    return round(alpha / rank, 6) if rank and alpha is not None else None
