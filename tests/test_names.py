"""Canonical names: what each logger's key means."""

from __future__ import annotations

import math

import pytest

from diagnose.model import Kind
from diagnose.names import ALIASES, Direction, canonical, direction, is_eval_loss, is_fallback, kind_of


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("loss", "train/loss"),
        ("train_loss", "train/loss"),
        ("train/loss", "train/loss"),
        ("Loss/train", "train/loss"),
        ("Training Loss", "train/loss"),
        ("train_loss_step", "train/loss"),
        ("train_loss_epoch", "train/loss"),
        ("eval_loss", "eval/loss"),
        ("eval/loss", "eval/loss"),
        ("val_loss", "eval/loss"),
        ("Validation Loss", "eval/loss"),
        ("valid/loss", "eval/loss"),
        ("eval_squad_loss", "eval/squad_loss"),
        ("grad_norm", "train/grad_norm"),
        ("learning_rate", "train/lr"),
        ("lr-AdamW", "train/lr"),
        ("lr-AdamW/pg1", "train/lr"),
        ("epoch", "epoch"),
        ("eval_accuracy", "eval/accuracy"),
        ("val_wer", "eval/wer"),
        ("rewards/chosen", "train/rewards/chosen"),
        ("rewards / chosen", "train/rewards/chosen"),
        ("reward", "train/reward"),
        ("train/mean_token_accuracy", "train/mean_token_accuracy"),
        ("entropy", "train/entropy"),
        ("evaluate_me", "train/evaluate_me"),
    ],
)
def test_canonical_name(key, name):
    assert canonical(key) == name


@pytest.mark.parametrize(
    "key",
    [
        "step",
        "global_step",
        "eval_runtime",
        "eval_samples_per_second",
        "train_steps_per_second",
        "total_flos",
        "test_loss",
        "",
        " ",
    ],
)
def test_what_is_no_metric_of_the_curve(key):
    assert canonical(key) is None


@pytest.mark.parametrize("name", sorted({*ALIASES.values(), "eval/squad_loss", "train/reward", "eval/f1"}))
def test_a_canonical_name_stays_itself(name):
    assert canonical(name) == name


@pytest.mark.parametrize("key", list(ALIASES))
def test_aliases_do_not_depend_on_case(key):
    assert canonical(key.upper()) == canonical(key.title()) == ALIASES[key]


def test_fallback_is_only_the_epoch_average():
    assert is_fallback("train_loss_epoch")
    assert not is_fallback("train_loss")
    assert not is_fallback("val_loss_epoch")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("eval/loss", Direction.LOWER),
        ("eval/wer", Direction.LOWER),
        ("eval/accuracy", Direction.HIGHER),
        ("eval/f1", Direction.HIGHER),
        ("eval/rouge1", Direction.HIGHER),
        ("eval/rougeL", Direction.HIGHER),
        ("eval/gen_len", None),
        ("train/entropy", None),
    ],
)
def test_direction(name, way):
    assert direction(name) is way


def test_better_is_strict_and_nan_is_never_better():
    for way, good, bad in ((Direction.LOWER, 1.0, 2.0), (Direction.HIGHER, 2.0, 1.0)):
        assert way.better(good, bad)
        assert not way.better(bad, good)
        assert not way.better(good, good)
        assert not way.better(math.nan, bad)
        assert not way.better(good, math.nan)


def test_eval_loss_of_any_set():
    assert all(map(is_eval_loss, ["eval/loss", "eval/a_loss", "eval/b/loss"]))
    assert not any(map(is_eval_loss, ["train/loss", "eval/wer", "eval/loss_scale", "eval/lossy"]))


def test_kind_of_run():
    assert kind_of([]) is Kind.SUPERVISED
    assert kind_of(["train/loss", "eval/loss", "train/mean_token_accuracy"]) is Kind.SUPERVISED
    assert kind_of(["train/loss", "train/rewards/accuracies"]) is Kind.PREFERENCE
    assert kind_of(["train/loss", "train/reward_std"]) is Kind.RL
    assert kind_of(["train/loss", "train/rewards/format/mean"]) is Kind.RL
    # KTO logs a kl beside its margins: it is a preference run all the same.
    assert kind_of(["train/loss", "train/rewards/margins", "train/kl"]) is Kind.PREFERENCE
