"""Reported logs and look-alikes: which rule tells the story, how seriously, and whether the run is stopped.

What a rule says of one clean curve stands in its own examples; here is what needs all rules together, or a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from walk import watched

from diagnose.model import Finding, Report, Row, Severity, Status

NAN, INF = math.nan, math.inf
LOSS, GRAD, RATE, EVAL = "train/loss", "train/grad_norm", "train/lr", "eval/loss"


def report(
    curves: Mapping[str, Sequence[float | None]],
    step: int = 10,
    settings: Mapping[str, Any] | None = None,
    first: int | None = None,
) -> Report:
    """All rules on columns of a log; None leaves a metric out of a row."""
    n = max(map(len, curves.values()))
    begin = step if first is None else first
    rows = [
        Row(begin + i * step, {k: float(v[i]) for k, v in curves.items() if i < len(v) and v[i] is not None}) for i in range(n)
    ]
    made = watched(rows, settings=settings).report()
    assert not made.crashes
    return made


def serious(made: Report) -> list[str]:
    """Names of open warnings and errors."""
    return [f.name for f in made.findings if f.status is Status.OPEN and f.severity is not Severity.INFO]


def one(made: Report, name: str) -> Finding:
    (found,) = [f for f in made.findings if f.name == name]
    return found


def cured_by_rate(found: Finding) -> bool:
    return found.prescription is not None and [c.setting for c in found.prescription.changes] == ["learning_rate"]


class TestHiddenNan:
    def test_adapter_dead_from_the_first_log(self):
        # Reported: first log 1.0778 with a NaN gradient at learning rate 0, then loss 0 while the rate warms up.
        rates = [0.0, 1.313e-07, 2.081e-07, 2.626e-07, 3.049e-07]
        made = report({LOSS: [1.0778, 0, 0, 0, 0], GRAD: [NAN] * 5, RATE: rates}, step=1)
        found = one(made, "hidden-nan")
        assert (found.severity, found.first_step, found.status) == (Severity.ERROR, 1, Status.OPEN)
        assert (made.stop.stop, made.stop.step) == (True, 2)
        assert not cured_by_rate(found)
        assert serious(made) == ["hidden-nan"]

    def test_every_fp16_step_skipped(self):
        # Reported: loss 4.5-4.7 without change, NaN gradient at every log, under fp16.
        losses = [4.6758, 4.5615, 4.6769, 4.5986]
        made = report({LOSS: losses, GRAD: [NAN] * 4, RATE: [1e-4] * 4}, settings={"fp16": True})
        assert "every fp16 step is skipped" in one(made, "hidden-nan").message
        assert made.stop.stop

    def test_unknown_precision_says_both(self):
        message = one(report({LOSS: [2.0, 1.9, 1.8, 1.7], GRAD: [1.0, NAN, NAN, NAN]}), "hidden-nan").message
        assert "either the weights are NaN or every step is skipped" in message
        assert "step 20" in message

    def test_scattered_nan_gradients_are_skipped_steps(self):
        # Reported: loss .147-.186, NaN gradient at the first and the fourth log, finite in the others.
        losses = [0.1474, 0.1549, 0.1864, 0.1819, 0.1558, 0.1568, 0.1471, 0.1558, 0.15, 0.151]
        grads = [NAN, 0.19, 1.02, NAN, 0.70, 1.49, 0.27, 0.31, 0.4, 0.3]
        made = report({LOSS: losses, GRAD: grads, RATE: [1e-4] * 10})
        assert "hidden-nan" not in [f.name for f in made.findings]
        assert not made.stop.stop

    def test_a_rate_past_its_warm_up_is_lowered_by_three(self):
        curves = {LOSS: [2.0, 1.8, 1.7, 0.0, 0.0], GRAD: [1.0, 2.0, 9.0, NAN, NAN], RATE: [1e-4, 2e-4, 3e-4, 3e-4, 3e-4]}
        found = one(report(curves, settings={"learning_rate": 3e-4}), "hidden-nan")
        (change,) = found.prescription.changes
        assert (change.setting, change.before, change.after) == ("learning_rate", 3e-4, 1e-4)
        assert "last checkpoint before it" in found.prescription.why

    def test_rate_near_zero_is_not_blamed(self):
        curves = {LOSS: [2.0, 2.0, 0.0], GRAD: [1.0, 1.0, NAN], RATE: [0.0, 1e-7, 2e-7]}
        assert not cured_by_rate(one(report(curves, step=1, settings={"learning_rate": 2e-4}), "hidden-nan"))

    def test_two_skips_at_the_start_are_left_alone_until_they_last(self):
        def curve(n: int) -> dict[str, list[float]]:
            return {LOSS: [0.6931] * 12, GRAD: [INF] * n + [3.0] * (12 - n)}

        assert "hidden-nan" not in serious(report(curve(6), step=1))
        made = report(curve(12), step=1)
        assert made.stop.step == 11
        assert report(curve(12), step=1, settings={"bf16": True}).stop.step == 2

    def test_loss_nan_is_told_once(self):
        made = report({LOSS: [2.0, 1.9, NAN, NAN], GRAD: [1.0, 1.0, NAN, NAN], EVAL: [2.1, 2.0, NAN, NAN]})
        assert serious(made) == ["nan-loss"]

    def test_dead_evaluation_stands_in_for_a_gradient_norm(self):
        # Recorded: after a divergence the evaluation is NaN and the training loss 0, and no gradient norm is logged.
        losses = [0.5134, 0.4, 0.39, 0.45, 0.5, 0.59, 0.78, 0.93, 1.05, 1.438, 0.0, 0.0, 0.0]
        evals = [0.26, 0.22, 0.2, 0.18, 0.19, 0.21, 0.3, 0.5, 0.7, NAN, NAN, NAN, NAN]
        made = report({LOSS: losses, EVAL: evals})
        found = one(made, "hidden-nan")
        assert (found.metric, found.first_step, found.severity) == (LOSS, 110, Severity.ERROR)
        assert "zero-loss" not in [f.name for f in made.findings]

    def test_evaluation_in_the_same_stretch_strengthens_the_message(self):
        made = report({LOSS: [2.0, 1.8, 0.0, 0.0], GRAD: [1.0, 1.0, NAN, NAN], EVAL: [2.0, 1.9, NAN, NAN]})
        assert "the evaluation loss is not finite either" in one(made, "hidden-nan").message

    def test_zero_loss_of_a_grpo_run_is_no_sign_but_a_lasting_nan_gradient_is(self):
        rewards = [0.1, 0.2, 0.1, 0.2]
        isolated = report({LOSS: [0.0] * 4, GRAD: [0.5, NAN, 0.4, 0.5], "train/reward": rewards})
        assert "hidden-nan" not in [f.name for f in isolated.findings]
        assert "hidden-nan" in serious(report({LOSS: [0.0] * 4, GRAD: [NAN] * 4, "train/reward": rewards}))


class TestZeroLoss:
    @pytest.mark.parametrize(("grads", "stopped_at"), [([0.0] * 8, 30), (None, 60)])
    def test_masked_labels_stop_sooner_with_a_gradient_norm(self, grads, stopped_at):
        made = report({LOSS: [0.0] * 8} | ({GRAD: grads} if grads else {}))
        assert made.stop.step == stopped_at
        assert not cured_by_rate(one(made, "zero-loss"))
        assert serious(made) == ["zero-loss"]

    def test_zeros_between_losses_are_examples_without_labels(self):
        losses = [2.0, 0.0, 1.9, 0.0, 0.0, 1.8, 1.9, 0.0, 1.7, 1.8, 0.0, 0.0, 1.6, 1.7]
        assert "zero-loss" not in serious(report({LOSS: losses}))

    @pytest.mark.parametrize("k", [2, 4, 8, 16])
    def test_zeros_at_a_fixed_period_are_an_artefact(self, k):
        curve = ([2.0] + [0.0] * (k - 1)) * 8
        assert "zero-loss" not in [f.name for f in report({LOSS: curve}).findings]

    def test_accumulation_in_the_settings_sets_the_patience(self):
        losses = [2.0, 1.9, 1.9, 1.8] + [0.0] * 20
        found = one(report({LOSS: losses}, settings={"gradient_accumulation_steps": 32}), "missing-eval")
        assert found
        assert "zero-loss" not in [
            f.name for f in report({LOSS: losses}, settings={"gradient_accumulation_steps": 32}).findings
        ]
        assert "zero-loss" in serious(report({LOSS: losses}, settings={"gradient_accumulation_steps": 4}))

    def test_a_drop_from_full_height_warns_then_stops(self):
        def after(n: int) -> Report:
            return report({LOSS: [2.0, 1.9, 1.9, 1.8, 1.8] + [0.0] * n})

        assert "zero-loss" not in serious(after(2))
        assert one(after(3), "zero-loss").severity is Severity.WARNING
        assert one(after(6), "zero-loss").severity is Severity.ERROR
        assert after(6).stop.step == 110

    def test_memorized_and_rounded_is_never_an_error(self):
        losses = [0.0023, 0.0005, 0.0002, 0.0001, 0.0001] + [0.0] * 12
        found = one(report({LOSS: losses, EVAL: [0.01] * 17}), "zero-loss")
        assert found.severity is Severity.WARNING
        assert "faded from 0.0023 to 0.0001" in found.message

    def test_a_live_gradient_says_that_the_log_is_wrong(self):
        found = one(report({LOSS: [0.0] * 8, GRAD: [1.5] * 8}), "zero-loss")
        assert found.severity is Severity.WARNING
        assert "does not hold the loss" in found.message

    def test_losses_that_come_back_resolve_it(self):
        made = report({LOSS: [2.0, 1.9, 1.9] + [0.0] * 3 + [1.8, 1.8, 1.7]})
        assert one(made, "zero-loss").status is Status.RESOLVED
        assert not made.stop.stop

    def test_reinforcement_learning_starts_at_zero(self):
        made = report({LOSS: [0.0] * 8, GRAD: [0.0] * 8, "train/reward": [0.1] * 8})
        assert serious(made) == []


class TestNanEval:
    def test_ctc_run_that_trains_well_is_only_warned(self):
        losses = [3.5 * 0.8**i + 0.38 for i in range(16)]
        made = report({LOSS: losses, EVAL: [INF] * 16, "eval/wer": [1.0 * 0.95**i for i in range(16)]})
        found = one(made, "nan-eval")
        assert found.severity is Severity.WARNING
        assert not cured_by_rate(found)
        assert "at every evaluation so far (16)" in found.message
        assert not made.stop.stop

    def test_two_isolated_ones_are_two_resolved_findings(self):
        evals = [1.0, 0.9, NAN, 0.85, 0.8, NAN, 0.78, 0.77]
        found = [f for f in report({LOSS: [1.0 - 0.02 * i for i in range(8)], EVAL: evals}).findings if f.name == "nan-eval"]
        assert [(f.first_step, f.last_step) for f in found] == [(30, 50), (60, 80)]
        assert {f.status for f in found} == {Status.RESOLVED}

    def test_each_evaluation_set_is_told_apart(self):
        made = report({LOSS: [2.0] * 3, "eval/a_loss": [NAN] * 3, "eval/b_loss": [1.9, INF, INF], "eval/c_loss": [1.9] * 3})
        assert [(f.metric, f.first_step) for f in made.findings if f.name == "nan-eval"] == [
            ("eval/a_loss", 10),
            ("eval/b_loss", 20),
        ]

    def test_dead_weights_have_one_story(self):
        assert serious(report({LOSS: [2.0, 1.8, 0.0, 0.0], GRAD: [1.0, 1.0, NAN, NAN], EVAL: [2.0, 1.9, NAN, NAN]})) == [
            "hidden-nan"
        ]


class TestZeroLearningRate:
    def test_skipped_fp16_steps_at_the_start_are_healthy(self):
        # Reported healthy: four zeros, then repeated small rates, then a normal warm-up.
        rates = [0, 0, 0, 0, 2.35e-6, 2.35e-6, 3.73e-6, 4.71e-6, 5.47e-6, 5.47e-6, 6.09e-6, 6.61e-6]
        losses = [2.71, 2.93, 3.09, 2.97, 2.95, 3.01, 3.12, 2.83, 2.98, 2.59, 2.82, 2.67]
        assert "zero-learning-rate" not in [f.name for f in report({LOSS: losses, RATE: rates}).findings]

    def test_schedule_used_up_after_a_resume(self):
        losses = [1.5, 1.4, 1.6, 1.5, 1.5, 1.4, 1.5, 1.6, 1.5, 1.5, 1.4, 1.5]
        made = report({LOSS: losses, RATE: [0.0] * 12}, first=5000)
        found = one(made, "zero-learning-rate")
        assert (found.severity, found.first_step) == (Severity.ERROR, 5000)
        assert "num_train_epochs" in found.prescription.advice
        assert not cured_by_rate(found)

    def test_falling_loss_shows_that_the_rate_is_only_rounded(self):
        losses = [3.0 * 0.9**i for i in range(12)]
        made = report({LOSS: losses, RATE: [0.0] * 12})
        assert "zero-learning-rate" not in [f.name for f in made.findings]

    def test_training_beyond_the_schedule_is_a_warning(self):
        rates = [2e-4 * (1 - i / 10) for i in range(10)] + [0.0] * 6
        found = one(report({LOSS: [1.5] * 16, RATE: rates}), "zero-learning-rate")
        assert (found.severity, found.first_step) == (Severity.WARNING, 110)

    def test_a_restart_resolves_it(self):
        rates = [2e-4, 1e-4, 5e-5, 0.0, 0.0, 0.0, 2e-4, 1e-4]
        assert one(report({LOSS: [1.5] * 8, RATE: rates}), "zero-learning-rate").status is Status.RESOLVED

    def test_nan_rate_is_not_zero(self):
        assert "zero-learning-rate" not in serious(report({LOSS: [1.5] * 12, RATE: [NAN] * 12}))


class TestNoGradient:
    def test_detached_adapter(self):
        losses = [1.5, 1.6, 1.4, 1.5, 1.5, 1.6, 1.4, 1.5]
        made = report({LOSS: losses, GRAD: [0.0] * 8, RATE: [1e-4] * 8})
        found = one(made, "no-gradient")
        assert (found.severity, made.stop.step) == (Severity.ERROR, 60)
        assert not cured_by_rate(found)

    def test_preference_run_that_sits_at_ln_2(self):
        curves = {LOSS: [0.6931] * 8, GRAD: [0.0] * 8, "train/rewards/margins": [0.0] * 8}
        assert "no-gradient" in serious(report(curves))

    def test_engine_that_logs_no_norm_is_believed_once_the_loss_falls(self):
        late = [2.0, 2.01, 1.99, 2.0, 2.0, 2.01] + [2.0 * 0.9**i for i in range(1, 12)]
        made = report({LOSS: late, GRAD: [0.0] * len(late)})
        assert one(made, "no-gradient").status is Status.RESOLVED

    def test_masked_labels_and_used_up_schedules_are_told_by_their_own_rules(self):
        assert serious(report({LOSS: [0.0] * 8, GRAD: [0.0] * 8})) == ["zero-loss"]
        used_up = report({LOSS: [1.5, 1.4, 1.6, 1.5] * 3, GRAD: [0.0] * 12, RATE: [0.0] * 12})
        assert "no-gradient" not in serious(used_up)

    def test_grpo_without_reward_spread_is_not_frozen(self):
        curves = {LOSS: [1e-5] * 8, GRAD: [0.0] * 8, "train/reward": [1.0] * 8, "train/frac_reward_zero_std": [1.0] * 8}
        assert "no-gradient" not in serious(report(curves))


class TestScaledLoss:
    def test_known_accumulation_makes_it_a_warning(self):
        curves = {LOSS: [8.0, 7.7, 7.4, 7.2, 7.0, 6.9], EVAL: [1.97, 1.91, 1.85, 1.8, 1.75, 1.72]}
        assert one(report(curves), "scaled-loss").severity is Severity.INFO
        assert one(report(curves, settings={"gradient_accumulation_steps": 4}), "scaled-loss").severity is Severity.WARNING
        assert one(report(curves, settings={"gradient_accumulation_steps": 2}), "scaled-loss").severity is Severity.INFO

    def test_two_evaluations_are_chance(self):
        assert "scaled-loss" not in [f.name for f in report({LOSS: [8.0, 7.7], EVAL: [2.0, 1.9]}).findings]

    def test_ratio_that_leaves_resolves_it(self):
        curves = {LOSS: [8.0, 7.6, 7.2, 6.8, 3.0, 2.8], EVAL: [2.0, 1.9, 1.8, 1.7, 1.6, 1.5]}
        found = one(report(curves), "scaled-loss")
        assert (found.status, found.last_step) == (Status.RESOLVED, 50)

    def test_losses_since_the_last_evaluation_count(self):
        # One outlier among them does not hide the factor.
        losses = [4.0, 4.0, 40.0, 3.9, 3.9, 3.9, 3.8, 3.8, 3.8]
        evals = [None, None, 2.0, None, None, 1.95, None, None, 1.9]
        assert "2 times" in one(report({LOSS: losses, EVAL: evals}), "scaled-loss").message

    def test_losses_before_the_last_evaluation_do_not_count(self):
        losses, evals = [8.0, 8.0, 4.0, 4.0, 2.0, 2.0], [None, 2.0, None, 1.0, None, 0.5]
        assert "4 times" in one(report({LOSS: losses, EVAL: evals}), "scaled-loss").message


class TestTheLogItself:
    def test_too_short_is_inconclusive_only_when_nothing_is_wrong(self):
        assert report({LOSS: [2.0, 1.9]}).verdict.value == "INCONCLUSIVE"
        dead = report({LOSS: [0.0] * 4, GRAD: [0.0] * 4})
        assert dead.verdict.value == "SICK"
        assert "too-short" not in [f.name for f in dead.findings]

    @pytest.mark.parametrize(("n", "short"), [(1, True), (7, True), (8, False)])
    def test_too_short_counts_finite_points(self, n, short):
        made = report({LOSS: [2.0 - 0.1 * i for i in range(n)]})
        assert ("too-short" in [f.name for f in made.findings]) is short

    def test_missing_evaluation_prescribes_one_but_not_for_the_run(self):
        made = report({LOSS: [2.0 * 0.98**i for i in range(40)]})
        found = one(made, "missing-eval")
        assert [(c.setting, c.after) for c in found.prescription.changes] == [("eval_strategy", "steps"), ("eval_steps", 50)]
        assert made.prescription is None or made.prescription.changes != found.prescription.changes
        evaluated = report({LOSS: [2.0 * 0.98**i for i in range(40)], "eval/accuracy": [None] * 39 + [0.5]})
        assert "missing-eval" not in [f.name for f in evaluated.findings]
