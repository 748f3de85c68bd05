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
        ("eval_reward", "eval/reward"),
        ("rewards_/_correctness_reward_func_/_mean", "train/rewards/correctness_reward_func/mean"),
        ("rewards/xmlcount_reward_func", "train/rewards/xmlcount_reward_func"),
        ("eval_rewards/margins", "eval/rewards/margins"),
        ("logps_/_chosen", "train/logps/chosen"),
        ("frac_reward_zero_std", "train/frac_reward_zero_std"),
        ("completion_length", "train/completions/mean_length"),
        ("completions_/_mean_length", "train/completions/mean_length"),
        ("response_length/mean", "train/completions/mean_length"),
        ("train/completions/clipped_ratio", "train/completions/clipped_ratio"),
        ("env/reward_mean", "train/reward"),
        ("objective/scores", "train/reward"),
        ("critic/score/mean", "train/reward"),
        ("objective/kl", "train/kl"),
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


#: Keys that trainers log beside `loss`: TRL 1.16 as installed, PPO of TRL 0.11 and 0.12, verl, OpenRLHF.
LOGS: dict[str, tuple[Kind, str]] = {
    "SFT": (Kind.SUPERVISED, "grad_norm learning_rate entropy mean_token_accuracy num_tokens eval_loss eval_entropy"),
    "DPO": (Kind.PREFERENCE, "logits/chosen rewards/chosen rewards/rejected rewards/accuracies rewards/margins entropy"),
    "DPO, only in evaluation": (Kind.PREFERENCE, "learning_rate eval_loss eval_rewards/chosen eval_rewards/margins"),
    "DPO, model card": (Kind.PREFERENCE, "Rewards/chosen Rewards/margins Logps/rejected"),
    "ORPO": (Kind.PREFERENCE, "rewards/margins logps/chosen nll_loss log_odds_ratio log_odds_chosen"),
    # KTO logs a kl beside its margins: it is a preference run all the same.
    "KTO": (Kind.PREFERENCE, "rewards/chosen rewards/margins logps/chosen logits/chosen kl"),
    "reward model": (Kind.PREFERENCE, "min_reward mean_reward max_reward accuracy margin num_tokens"),
    "GRPO": (Kind.RL, "reward reward_std frac_reward_zero_std rewards/f/mean rewards/f/std entropy completions/mean_length"),
    "GRPO, old": (Kind.RL, "rewards_/_xmlcount_reward_func completion_length kl"),
    "RLOO": (Kind.RL, "reward reward_std frac_reward_zero_std clip_ratio/high_mean entropy"),
    "PPO": (Kind.RL, "objective/kl objective/scores objective/rlhf_reward policy/approxkl_avg loss/policy_avg val/ratio"),
    "PPO, old": (Kind.RL, "ppo/loss/total ppo/mean_scores env/reward_mean env/reward_std objective/kl"),
    "verl": (Kind.RL, "actor/pg_loss actor/kl_loss critic/score/mean critic/rewards/mean response_length/mean"),
    "autoencoder": (Kind.SUPERVISED, "kl reconstruction_loss"),
    "SFT that measures a reward": (Kind.SUPERVISED, "eval_loss eval_reward"),
}


@pytest.mark.parametrize(("kind", "keys"), LOGS.values(), ids=LOGS)
def test_kind_of_run_from_the_keys_as_logged(kind, keys):
    names = {canonical(key) for key in ("loss", *keys.split())} - {None}
    assert kind_of(names) is kind


def test_kind_of_run():
    assert kind_of([]) is Kind.SUPERVISED
    assert kind_of(["train/loss", "train/rewards/format/mean"]) is Kind.RL
    assert kind_of(["train/loss", "train/rewards/margins", "train/reward"]) is Kind.PREFERENCE
