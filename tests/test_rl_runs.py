"""Runs whose loss is not the signal: which rules look, which say why they do not, and what the verdict is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from walk import watched

from diagnose.model import Kind, Row, Severity, Status, Verdict
from diagnose.names import TRAIN_LOSS

#: Rules that compare logarithms of the training loss.
OF_THE_LOSS = {
    *("loss-spike", "loss-divergence", "unstable-loss", "collapsed-loss", "flat-loss", "slow-loss"),
    *("epoch-staircase", "plateau", "still-learning"),
}


def rows_of(**columns):
    """Rows at every tenth step; `__` in a name stands for `/`."""
    n = max(map(len, columns.values()))
    names = {key.replace("__", "/"): values for key, values in columns.items()}
    return [Row(10 * (i + 1), {name: float(v[i]) for name, v in names.items()}, 0.05 * i) for i in range(n)]


def rising(n=80, seed=0):
    rng = np.random.default_rng(seed)
    return (0.2 + np.linspace(0, 1, n) + rng.normal(0, 0.1, n)).tolist()


def test_a_healthy_grpo_run_is_healthy_whatever_its_loss_does():
    kl = [0.0, 0.0, *np.geomspace(1e-5, 0.08, 78).tolist()]
    rows = rows_of(train__loss=[0.04 * v for v in kl], train__reward=rising(), train__reward_std=[0.4] * 80, train__kl=kl)
    report = watched(rows).report()
    assert report.kind is Kind.RL
    assert report.verdict is Verdict.HEALTHY, report.headline
    assert not report.findings
    assert not report.stop.stop
    assert report.best is None


def test_an_rl_run_without_reward_is_not_called_healthy():
    rows = rows_of(train__loss=[0.01] * 40, train__frac_reward_zero_std=[0.1] * 40)
    report = watched(rows).report()
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "reward-collapse could not look: the log has no train/reward" in report.headline


def test_a_loss_around_zero_is_judged_by_no_rule_and_each_says_why():
    rng = np.random.default_rng(1)
    report = watched(rows_of(train__loss=rng.normal(0, 0.04, 60))).report()
    assert report.kind is Kind.SUPERVISED
    assert report.verdict is Verdict.INCONCLUSIVE
    assert {f.severity for f in report.findings} <= {Severity.INFO}
    reasons = {skip.name: skip.reason for skip in report.skips}
    assert set(reasons) >= OF_THE_LOSS
    assert all("below 0" in reasons[name] for name in OF_THE_LOSS)


def test_a_climb_is_taken_back_when_the_loss_turns_out_to_be_no_likelihood():
    loss = [0.1 + 0.001 * (-1) ** i for i in range(20)] + [0.1 * 1.2**i for i in range(10)] + [-0.01, 0.02] * 10
    exam = watched(rows_of(train__loss=loss)[:30])
    assert [f.status for f in exam.findings if f.name == "loss-divergence"] == [Status.OPEN]
    for row in rows_of(train__loss=loss)[30:]:
        exam.feed(row)
    (climb,) = [f for f in exam.findings if f.name == "loss-divergence"]
    assert climb.status is Status.RESOLVED
    assert "below 0" in climb.message


def test_an_evaluation_loss_that_goes_below_zero_is_not_memorized():
    train = np.linspace(1.0, -2.0, 40).tolist()
    evals = np.linspace(1.0, -0.2, 30).tolist() + [0.05 * (-1) ** i for i in range(10)]
    report = watched(rows_of(train__loss=train, eval__loss=evals)).report()
    assert "memorization" not in {f.name for f in report.findings}
    assert any(skip.name == "memorization" and "below 0" in skip.reason for skip in report.skips)


def test_gradient_spikes_while_the_reward_rises_are_harmless():
    grad = [0.3 if i % 7 else 50.0 * (i + 1) for i in range(80)]
    rows = rows_of(train__loss=[0.001] * 80, train__reward=rising(), train__grad_norm=grad, train__kl=[0.05] * 80)
    report = watched(rows).report()
    assert not [f for f in report.findings if f.severity is not Severity.INFO]
    assert not report.stop.stop


def test_a_negative_chosen_reward_is_normal():
    margin = np.linspace(0, 2, 80)
    rows = rows_of(
        train__loss=np.log1p(np.exp(-margin)),
        train__rewards__margins=margin,
        train__rewards__chosen=-0.5 * margin,
        train__rewards__rejected=-1.5 * margin,
    )
    report = watched(rows).report()
    assert report.kind is Kind.PREFERENCE
    assert not [f for f in report.findings if f.severity is not Severity.INFO], report.headline


@pytest.mark.parametrize("repeats", [1, 2])
def test_nan_losses_of_a_grpo_run(repeats):
    """One may be a step without a valid group; two in a row are none."""
    loss = [0.01] * 20 + [math.nan] * repeats + [0.01] * 20 * (repeats == 1)
    rows = rows_of(train__loss=loss, train__reward=rising(len(loss)))
    report = watched(rows).report()
    assert report.stop.stop == (repeats > 1)
    assert {f.status for f in report.findings if f.name == "nan-loss"} == {Status.OPEN if repeats > 1 else Status.RESOLVED}


def test_the_best_reward_is_the_checkpoint_to_go_back_to():
    reward = [*rising(60), *[-0.5] * 60]
    report = watched(rows_of(train__loss=[0.001] * 120, train__reward=reward)).report()
    assert report.verdict is Verdict.SICK
    assert report.prescription is not None
    assert report.prescription.checkpoint_step is not None
    assert 550 <= report.prescription.checkpoint_step <= 620
    assert not report.stop.stop, "a reward may fall by design, so it ends no run"
    assert TRAIN_LOSS not in {f.metric for f in report.findings}
