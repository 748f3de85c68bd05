"""Rules about settings beside a curve: a fact on a healthy run, a warning where the curve shows what the setting does."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console
from walk import watched

from diagnose.model import Finding, Report, Row, Severity, Verdict
from diagnose.report.table import table
from diagnose.report.text import render_report

LOSS, EVAL, RATE = "train/loss", "eval/loss", "train/lr"
HEALTHY = [1.0 + 1.5 * 0.93**i + 0.01 * (-1) ** i for i in range(60)]
DIVERGED = HEALTHY[:20] + [1.6 * 1.25**i for i in range(12)] + [20.0] * 28
MEMORIZED = ([2.2, 1.9, 1.8] + [1.8 + 0.2 * i for i in range(1, 10)], [2.0 * 0.8**i for i in range(12)])


def report(curves: dict[str, list[float]], settings: dict[str, Any], step: int = 10) -> Report:
    n = max(map(len, curves.values()))
    rows = [Row((i + 1) * step, {k: v[i] for k, v in curves.items()}, (i + 1) / 10) for i in range(n)]
    made = watched(rows, settings=settings).report()
    assert not made.crashes
    return made


def told(made: Report) -> dict[str, Finding]:
    return {f.name: f for f in made.findings if f.metric == "settings"}


def text(made: Report) -> str:
    out = io.StringIO()
    render_report(made, console=Console(file=out, width=100))
    return out.getvalue()


FAST = {"learning_rate": 3e-3, "method": "lora", "max_steps": 600}


def test_a_rate_too_high_is_a_fact_on_a_healthy_run():
    made = report({LOSS: HEALTHY}, FAST)
    found = told(made)["learning-rate-out-of-range"]
    assert (found.severity, made.verdict, made.prescription) == (Severity.INFO, Verdict.HEALTHY, None)
    assert found.prescription is not None


def test_and_a_warning_beside_a_divergence_whose_cure_stays_the_only_one():
    made = report({LOSS: DIVERGED}, FAST)
    found = told(made)["learning-rate-out-of-range"]
    assert found.severity is Severity.WARNING
    assert "the likely cause of loss-divergence at step" in found.message
    assert found.prescription is None
    divergence = next(f for f in made.findings if f.name == "loss-divergence")
    assert made.headline.startswith("loss-divergence: ")
    assert "learning-rate-out-of-range" not in made.headline
    assert made.prescription is not None
    assert divergence.prescription is not None
    assert made.prescription.changes == divergence.prescription.changes


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("loose-clipping", {"max_grad_norm": 0.0}),
        ("fast-high-rank", {"learning_rate": 2e-4, "method": "lora", "lora_r": 128}),
    ],
)
def test_other_settings_that_a_divergence_blames(name: str, settings: dict[str, Any]):
    assert told(report({LOSS: HEALTHY}, settings))[name].severity is Severity.INFO
    assert told(report({LOSS: DIVERGED}, settings))[name].severity is Severity.WARNING


def test_fp16_is_blamed_for_nan():
    made = report({LOSS: [*HEALTHY[:30], *[math.nan] * 5]}, {"fp16": True})
    assert told(made)["half-precision"].severity is Severity.WARNING


def test_memorization_blames_epochs_and_what_keeps_no_best_checkpoint():
    settings = {
        "num_train_epochs": 12,
        "eval_strategy": "steps",
        "save_strategy": "no",
        "load_best_model_at_end": False,
    }
    evals, losses = MEMORIZED
    made = report({LOSS: losses, EVAL: evals}, settings)
    assert "memorization" in [f.name for f in made.findings]
    found = told(made)
    assert {found[n].severity for n in ("many-epochs", "eval-save-mismatch")} == {Severity.WARNING}
    calm = told(report({LOSS: losses, EVAL: [v + 0.1 for v in losses]}, settings))
    assert {calm[n].severity for n in ("many-epochs", "eval-save-mismatch")} == {Severity.INFO}


def test_no_warm_up_is_blamed_for_what_breaks_early_alone():
    settings = {"warmup_steps": 0, "max_steps": 6000}
    assert told(report({LOSS: DIVERGED}, settings))["odd-warm-up"].severity is Severity.WARNING
    late = report({LOSS: DIVERGED}, {**settings, "max_steps": 700})
    assert "loss-divergence" in [f.name for f in late.findings]
    assert told(late)["odd-warm-up"].severity is Severity.INFO


def test_default_settings_of_the_trainer_are_few_lines():
    settings = {
        "learning_rate": 5e-5, "method": "full", "num_train_epochs": 3.0, "total_train_batch_size": 16, "warmup_steps": 0,
        "lr_scheduler_type": "linear", "max_grad_norm": 1.0, "weight_decay": 0.0, "fp16": False, "optim": "adamw_torch_fused",
        "save_strategy": "steps", "save_steps": 500, "eval_strategy": "steps", "eval_steps": 100, "save_total_limit": 0,
        "load_best_model_at_end": False, "logging_nan_inf_filter": True, "max_steps": 600,
    }  # fmt: skip
    rates = [5e-5 * (1 - i / 60) for i in range(60)]
    made = report({LOSS: HEALTHY, "train/grad_norm": [1.0] * 60, RATE: rates}, settings)
    assert set(told(made)) == {"odd-warm-up"}
    assert made.verdict is Verdict.HEALTHY


def test_unknown_settings_are_one_remark_in_the_report():
    made = report({LOSS: HEALTHY}, {})
    skips = [s for s in made.skips if s.code.startswith("CD5")]
    assert len(skips) > 10
    assert all(s.reason.startswith(("the log does not tell ", "the log has no ")) for s in skips)
    line = " ".join(text(made).split())
    assert line.count("the log does not tell") == 1
    assert "settings checks (the log does not tell learning_rate, method, num_train_epochs" in line
    assert "many-epochs" not in line


def test_a_setting_leads_no_healthy_run_and_has_no_place_in_it():
    made = report({LOSS: HEALTHY}, {"weight_decay": 0.5, "max_steps": 600})
    assert [f.name for f in made.findings if f.metric == "settings"] == ["strong-weight-decay"]
    others = {f.name for f in made.findings} - {"strong-weight-decay"}
    (_, row, *_) = [line.plain for line in table([made], is_ascii=True)]
    assert "strong-weight-decay" not in row
    assert "(step" not in text(made).partition("strong-weight-decay")[2].partition("weight_decay 0.5")[2].splitlines()[0]
    assert others <= {"missing-eval", "plateau", "still-learning"}


@pytest.mark.parametrize("value", ["x", True, 10**400, -1, 0, math.inf, math.nan, "", None])
def test_settings_of_any_kind_crash_no_rule(value: Any):
    from diagnose.rules import RULES
    from diagnose.rules.settings import SettingsRule

    names = {name for rule in RULES for example in (*rule.firing, *rule.silent) for name in example.settings}
    curves = {LOSS: HEALTHY, EVAL: HEALTHY, RATE: [1e-4] * 60}
    rules = [rule() for rule in RULES if issubclass(rule, SettingsRule)]
    rows = [Row(10 * (i + 1), {k: v[i] for k, v in curves.items()}, i / 10) for i in range(60)]
    made = watched(rows, rules, settings=dict.fromkeys(names, value)).report()
    assert not made.crashes, made.crashes[0].traceback
    assert all(e.holds() for f in made.findings for e in f.evidence)
