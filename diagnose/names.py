"""Canonical metric names: the one place that knows what each logger calls a thing.

Canonical names are `train/loss`, `train/grad_norm`, `train/lr`, `eval/loss`, `epoch`, and `train/<key>` or
`eval/<key>` for everything else a log holds. `step` is the row's own index and never a metric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache

from diagnose.model import Kind

TRAIN_LOSS = "train/loss"
EVAL_LOSS = "eval/loss"
GRAD_NORM = "train/grad_norm"
LEARNING_RATE = "train/lr"
EPOCH = "epoch"
#: Told by a live doctor at a step whose gradient was NaN or infinite: whether that update was dropped or made.
BAD_GRADIENT = "train/bad_gradient"
DROPPED, MADE = 1.0, 2.0
#: Told by a live doctor at the step from which a training was resumed.
RESUMED = "train/resumed"
#: Under this heading a live doctor writes into other people's logs: never a metric of the run.
OWN = "curve_doctor"
REWARD = "train/reward"
REWARD_STD = "train/reward_std"
KL = "train/kl"
COMPLETION_LENGTH = "train/completions/mean_length"

#: Exact names after lower-casing and turning spaces, dots and dashes into underscores. Sources: the log keys of
#: transformers, TRL, LLaMA-Factory, Lightning and Keras as installed.
ALIASES: dict[str, str] = {
    "loss": TRAIN_LOSS,
    "train_loss": TRAIN_LOSS,
    "train/loss": TRAIN_LOSS,
    "training_loss": TRAIN_LOSS,
    "loss/train": TRAIN_LOSS,
    "loss/training": TRAIN_LOSS,
    "train_loss_step": TRAIN_LOSS,
    "train/loss_step": TRAIN_LOSS,
    "avg_loss": TRAIN_LOSS,
    "train/epoch_loss": TRAIN_LOSS,
    "epoch_loss": TRAIN_LOSS,
    "total_loss": TRAIN_LOSS,
    "loss/total_loss": TRAIN_LOSS,
    "loss/total": TRAIN_LOSS,
    "lm_loss": TRAIN_LOSS,
    "train/train_loss": TRAIN_LOSS,
    "eval_loss": EVAL_LOSS,
    "eval/loss": EVAL_LOSS,
    "val_loss": EVAL_LOSS,
    "val/loss": EVAL_LOSS,
    "valid_loss": EVAL_LOSS,
    "valid/loss": EVAL_LOSS,
    "validation_loss": EVAL_LOSS,
    "validation/loss": EVAL_LOSS,
    "validation/epoch_loss": EVAL_LOSS,
    "loss/val": EVAL_LOSS,
    "loss/valid": EVAL_LOSS,
    "loss/validation": EVAL_LOSS,
    "loss/eval": EVAL_LOSS,
    "val_loss_epoch": EVAL_LOSS,
    "val/loss_epoch": EVAL_LOSS,
    "grad_norm": GRAD_NORM,
    "train/grad_norm": GRAD_NORM,
    "gradient_norm": GRAD_NORM,
    "grad_norm/total": GRAD_NORM,
    "learning_rate": LEARNING_RATE,
    "train/learning_rate": LEARNING_RATE,
    "lr": LEARNING_RATE,
    "train/lr": LEARNING_RATE,
    "epoch_learning_rate": LEARNING_RATE,
    "train/epoch_learning_rate": LEARNING_RATE,
    "lr/pg0": LEARNING_RATE,
    "epoch": EPOCH,
    "train/epoch": EPOCH,
    "current_epoch": EPOCH,
    # Reinforcement learning: TRL's PPO before and since 0.12, verl and OpenRLHF.
    "env/reward_mean": REWARD,
    "env/reward_std": REWARD_STD,
    "objective/scores": REWARD,
    "critic/score/mean": REWARD,
    "objective/kl": KL,
    "response_length/mean": COMPLETION_LENGTH,
    "response_length": COMPLETION_LENGTH,
}

#: Epoch averages and other second tellings of a metric that has a finer name: used only when that is absent.
FALLBACKS: dict[str, str] = {
    "train_loss_epoch": TRAIN_LOSS,
    "train/loss_epoch": TRAIN_LOSS,
    # GRPO before TRL 0.16; later versions log both for a while.
    "completion_length": COMPLETION_LENGTH,
    "train/completion_length": COMPLETION_LENGTH,
}

#: What a log row holds beside metrics: clocks, counters and throughput. They say nothing about the curve.
_IGNORED = re.compile(
    r"^(step|steps|global_step|current_steps|total_steps|iteration|iter|percentage|elapsed_time|remaining_time|"
    r"throughput|total_tokens|total_flos|hp_metric|wall_time|time|timestamp|created_at|data_time|rank_data_time|eta_seconds|"
    r"memory|n_parameters|trainer/global_step|_step|_runtime|_timestamp|_wandb)$"
    r"|(^|[_/])(runtime|samples_per_second|steps_per_second|steps_per_sec|tokens_per_second|jit_compilation_time)$"
    r"|_vs_(iterations|samples|steps)$"  # the same metric told again over another axis
)
_TEST = re.compile(r"^(test|predict)[_/]|/test$")
_LIGHTNING_LR = re.compile(r"^lr-\w+(/pg\d+)?$", re.IGNORECASE)
_EVAL_PREFIX = re.compile(r"^(eval|val|valid|validation|dev)[/_](?=.)")
_TRAIN_PREFIX = re.compile(r"^(train|training)[/_](?=.)")
_EVAL_SUFFIX = re.compile(r"(?<=.)[/](eval|val|valid|validation|dev)$")
_TRAIN_SUFFIX = re.compile(r"(?<=.)[/](train|training)$")
#: Words of a name that is nothing but the loss of some data: `loss_val`, `avg_train_loss`, `Loss/train_loss`.
_TRAIN_WORDS = frozenset({"train", "training", "tr", "trn"})
_EVAL_WORDS = frozenset({"val", "valid", "validation", "eval", "dev"})
_FINE_WORDS = frozenset({"step", "iter", "iteration", "batch"})
_LOSS_WORDS = frozenset({"loss", "losses", "avg", "average", "mean", "total", "epoch", "running", "lm", "test"}) | _FINE_WORDS


class Direction(Enum):
    """Which way a metric should go. A metric of unknown direction is never judged."""

    LOWER = "lower"
    HIGHER = "higher"

    def better(self, a: float, b: float) -> bool:
        """Whether `a` is strictly better than `b`; NaN is never better and never beaten by NaN.

        >>> Direction.LOWER.better(1.0, 2.0), Direction.HIGHER.better(float("nan"), 2.0)
        (True, False)
        """
        return a < b if self is Direction.LOWER else a > b


_HIGHER = ("accuracy", "accuracies", "acc", "f1", "precision", "recall", "bleu", "rouge", "auc", "map", "em", "exact_match")
_LOWER = ("loss", "wer", "cer", "perplexity", "ppl", "mse", "mae", "rmse", "ter")


def direction(name: str) -> Direction | None:
    """Which way the metric `name` should go; None when the name does not say.

    >>> direction("eval/wer"), direction("eval/f1_score"), direction("eval/gen_len")
    (<Direction.LOWER: 'lower'>, <Direction.HIGHER: 'higher'>, None)
    """
    words = set(re.split(r"[/_\-.]", name.lower()))
    if words & set(_LOWER):
        return Direction.LOWER
    return Direction.HIGHER if any(w in _HIGHER or w.rstrip("0123456789l") in _HIGHER for w in words) else None


def _plain(key: str) -> str:
    """A key in lower case, with one way to write blanks and slashes."""
    return re.sub(r"_*/_*", "/", re.sub(r"[ .\-]+", "_", key.strip()).lower())


def error_share_gained(then: float, now: float, way: Direction) -> float:
    """Which share of the error a task metric has gained.

    The error of a metric that should rise is its distance to 1, or to 100 where it exceeds 1.

    Args:
        then: value before.
        now: value after.
        way: which way the metric should go.

    >>> round(error_share_gained(0.9, 0.95, Direction.HIGHER), 3), round(error_share_gained(20.0, 15.0, Direction.LOWER), 3)
    (0.5, 0.25)
    """
    if way is Direction.LOWER:
        return (then - now) / abs(then) if then else 0.0
    top = 1.0 if max(then, now) <= 1.0 else 100.0
    return (now - then) / (top - then) if then < top else 0.0


@lru_cache(maxsize=4096)
def canonical(key: str) -> str | None:
    """The canonical name of a log key; None for clocks, counters, throughput and results on test data.

    Args:
        key: as the log has it: `eval_loss`, `train/loss`, `Loss/train`, `val_loss`, `rewards/margins` …

    >>> canonical("eval_loss"), canonical("Loss/train"), canonical("eval_squad_loss"), canonical("reward")
    ('eval/loss', 'train/loss', 'eval/squad_loss', 'train/reward')
    >>> canonical("Accuracy/val"), canonical("rewards / chosen"), canonical("avg_train_loss"), canonical("loss_val")
    ('eval/accuracy', 'train/rewards/chosen', 'train/loss', 'eval/loss')
    >>> canonical("completions_/_clipped_ratio"), canonical("completion_length"), canonical("env/reward_mean")
    ('train/completions/clipped_ratio', 'train/completions/mean_length', 'train/reward')
    >>> canonical("eval_runtime"), canonical("test_loss"), canonical("eval_test_loss")
    (None, None, 'eval/test_loss')
    """
    name = _plain(key)
    if name in ALIASES:
        return ALIASES[name]
    if name in FALLBACKS:
        return FALLBACKS[name]
    if not name or name.startswith(f"{OWN}/") or _IGNORED.search(name) or _TEST.search(name):
        return None
    if name.startswith("epoch_"):
        return canonical(name.removeprefix("epoch_"))
    words = set(re.split(r"[/_]", name))
    if words & {"loss", "losses"} and words <= _LOSS_WORDS | _TRAIN_WORDS | _EVAL_WORDS:
        sets = words & (_TRAIN_WORDS | _EVAL_WORDS)
        if "test" in words and not sets:
            return None
        if sets & _TRAIN_WORDS and sets & {"val", "valid", "validation"}:
            return EVAL_LOSS  # logged under a heading for the training
        # `eval_train_loss` is another evaluation set, and `val_loss_step` one batch of it.
        if len(sets) <= 1 and "test" not in words and not (sets <= _EVAL_WORDS and sets and words & _FINE_WORDS):
            return EVAL_LOSS if sets & _EVAL_WORDS else TRAIN_LOSS
    if _LIGHTNING_LR.match(key.strip()):
        return LEARNING_RATE
    for side, pattern in (("eval", _EVAL_PREFIX), ("train", _TRAIN_PREFIX), ("eval", _EVAL_SUFFIX), ("train", _TRAIN_SUFFIX)):
        rest = pattern.sub("", name)
        if rest != name:
            return None if _IGNORED.search(rest) else f"{side}/{rest}"
    return "train/" + name


@lru_cache(maxsize=4096)
def is_fallback(key: str) -> bool:
    """Whether `key` is an epoch average that yields to a finer series of the same canonical name.

    >>> is_fallback("train_loss_epoch"), is_fallback("train_loss")
    (True, False)
    """
    return _plain(key) in FALLBACKS


def is_eval_loss(name: str) -> bool:
    """Whether a canonical name is the loss of an evaluation set, the main one or a named one.

    >>> is_eval_loss("eval/loss"), is_eval_loss("eval/squad_loss"), is_eval_loss("eval/wer")
    (True, True, False)
    """
    return name == EVAL_LOSS or (name.startswith("eval/") and name.endswith(("_loss", "/loss")))


#: Keys without their side. The pairs of a preference run are told by its evaluation too, where training logs only a loss.
_PREFERENCE_KEYS = frozenset(
    f"{side}/{key}"
    for side in ("train", "eval")
    for key in ("rewards/margins", "rewards/chosen", "rewards/rejected", "rewards/accuracies", "logps/chosen", "logps/rejected")
) | {"train/margin", "train/mean_reward", "train/log_odds_chosen"}
#: What nothing but reinforcement learning logs. A `kl` is not among them: autoencoders and distillation log one too.
_RL_KEYS = frozenset(
    {
        REWARD,
        REWARD_STD,
        "train/frac_reward_zero_std",
        "train/objective/rlhf_reward",
        "train/objective/non_score_reward",
        "train/policy/approxkl_avg",
        "train/loss/policy_avg",
        "train/actor/pg_loss",
        "train/critic/rewards/mean",
        "train/rollout/ep_rew_mean",
    }
)
_RL_PREFIXES = ("train/rewards/", "train/completions/", "train/ppo/", "train/clip_ratio/")


def kind_of(names: Iterable[str]) -> Kind:
    """What the loss means in a log that holds these canonical names.

    A reward among the evaluation metrics alone says nothing of the training: a supervised run may measure one.

    >>> kind_of(["train/loss", "train/reward", "train/kl"]), kind_of(["train/loss", "train/rewards/margins"])
    (<Kind.RL: 'rl'>, <Kind.PREFERENCE: 'preference'>)
    >>> kind_of(["train/loss", "eval/rewards/margins"]), kind_of(["train/loss", "eval/reward", "train/kl"])
    (<Kind.PREFERENCE: 'preference'>, <Kind.SUPERVISED: 'supervised'>)
    """
    present = set(names)
    if present & _PREFERENCE_KEYS:
        return Kind.PREFERENCE
    if present & _RL_KEYS or any(n.startswith(_RL_PREFIXES) for n in present):
        return Kind.RL
    return Kind.SUPERVISED
