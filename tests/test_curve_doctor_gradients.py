"""The gradient of every step: what is not finite never reaches the weights, and is told with its step and its data."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the train extra")
pytestmark = pytest.mark.train

import torch
from tiny import Classifier, trainer
from torch import nn
from transformers import Trainer

from diagnose import CurveDoctor, examine
from diagnose.callbacks.gradient_guard import BadGradient, GradientGuard, is_finite
from diagnose.model import Finding, Report, Severity, Status, Verdict
from diagnose.readers import read

CPU = SimpleNamespace(device=torch.device("cpu"), logging_nan_inf_filter=True, fp16=False)
NO_WAIT = SimpleNamespace(device=torch.device("cuda"), logging_nan_inf_filter=False, fp16=False)


def run(folder: Path, doctor: CurveDoctor, *, resume: str | None = None, **options: Any) -> tuple[Trainer, str]:
    made = trainer(folder, [doctor], **options)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        made.train(resume_from_checkpoint=resume)
    made.save_state()
    assert not doctor.failed, out.getvalue()
    return made, out.getvalue()


def report(doctor: CurveDoctor) -> Report:
    assert doctor.examination is not None
    return doctor.examination.report()


def nan_losses(doctor: CurveDoctor) -> list[Finding]:
    return [f for f in report(doctor).findings if f.name == "nan-loss"]


@pytest.mark.parametrize("options", [{}, {"logging_nan_inf_filter": False}, {"logging_steps": 5}, {"max_grad_norm": 0.0}])
def test_one_broken_row_costs_one_update_an_epoch_and_no_more(tmp_path: Path, options: dict[str, Any]) -> None:
    doctor = CurveDoctor()
    made, out = run(tmp_path, doctor, broken=[37], max_steps=24, **options)
    assert made.state.global_step == 24, "the training went on"
    assert is_finite(made.model)
    found = nan_losses(doctor)
    assert len([line for line in out.splitlines() if "curve-doctor: step " in line]) == 3  # one step of each of three epochs
    assert all(f.severity is Severity.WARNING for f in found)
    assert not report(doctor).stop.stop


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_the_rows_of_the_bad_step_are_named(tmp_path: Path, accumulation: int) -> None:
    doctor = CurveDoctor()
    run(tmp_path, doctor, broken=[37], max_steps=12, per_device_train_batch_size=4, gradient_accumulation_steps=accumulation)
    notes = [note for note in report(doctor).notes if note.kind == "rows-of-step"]
    assert notes
    for note in notes:
        rows = [int(row) for row in note.text.rpartition("rows ")[2].split(", ")]
        assert 37 in rows
        assert len(rows) <= 4 * accumulation


def test_the_file_beside_the_log_lets_diagnose_say_the_same(tmp_path: Path) -> None:
    doctor = CurveDoctor()
    run(tmp_path, doctor, broken=[37], max_steps=24)
    (offline,) = [examine(found) for found in read(tmp_path)]
    live = report(doctor)
    assert offline.findings == live.findings
    assert {note.text for note in live.notes} <= {note.text for note in offline.notes}
    written = json.loads((tmp_path / "curve_doctor.json").read_text())
    assert [row["bad_gradient"] for row in written["observed"]] == [1.0, 1.0, 1.0]


def test_stopped_and_resumed_it_finds_what_an_unbroken_run_finds(tmp_path: Path) -> None:
    options: dict[str, Any] = {"broken": [37], "max_steps": 24, "save_strategy": "steps", "save_steps": 12}
    whole, first, second = CurveDoctor(), CurveDoctor(), CurveDoctor()
    run(tmp_path / "whole", whole, **options)
    run(tmp_path / "parts", first, **options | {"max_steps": 12, "lr_scheduler_type": "constant"})
    run(tmp_path / "parts", second, resume=str(tmp_path / "parts" / "checkpoint-12"), **options)
    assert [f.key for f in report(second).findings] == [f.key for f in report(whole).findings]
    assert len([n for n in report(second).notes if n.kind == "rows-of-step"]) == 3


class Overflowing(Classifier):
    """From step 6 on the gradient of the last layer's bias holds one infinity, and nothing else is wrong."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super().forward(x, labels)
        if self.training and self.n_steps >= 6:
            bias = self.layers[2].bias
            bias.register_hook(lambda g: torch.where(torch.arange(4) == 0, math.inf, g))
        return found


def test_an_overflow_in_one_place_is_seen_through_the_clipping(tmp_path: Path) -> None:
    doctor = CurveDoctor()
    made, _ = run(tmp_path, doctor, model=Overflowing())
    assert made.state.global_step == 7
    assert is_finite(made.model)
    assert report(doctor).verdict is Verdict.SICK


def layers(*gradients: float) -> torch.optim.Optimizer:
    """An optimizer of one-weight parameters with these gradients."""
    parameters = [nn.Parameter(torch.ones(1)) for _ in gradients]
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = torch.tensor([g])
    return torch.optim.SGD(parameters, lr=0.1)


def of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return list(optimizer.param_groups[0]["params"])


def test_a_dropped_update_leaves_the_weights() -> None:
    optimizer = layers(math.nan, 1.0)
    assert GradientGuard(CPU, may_drop=True).look(5, optimizer) == (BadGradient(5, True),)
    optimizer.step()
    assert [float(p.detach()) for p in of(optimizer)] == [1.0, 1.0]


def test_what_may_not_be_dropped_is_only_told() -> None:
    optimizer = layers(math.nan, 1.0)
    assert GradientGuard(CPU, may_drop=False).look(5, optimizer) == (BadGradient(5, False),)
    assert all(p.grad is not None for p in of(optimizer))


def test_a_gradient_of_zero_is_not_enough_to_go_by() -> None:
    guard = GradientGuard(CPU, may_drop=True)
    assert guard.look(1, layers(0.0, 0.0, 0.0)) == ()
    assert guard.look(2, layers(0.0, 0.0, math.nan)) == (BadGradient(2, True),)
    assert guard.look(3, layers(0.0, 1.0, 1.0)) == ()


def test_without_gradients_there_is_nothing_to_look_at() -> None:
    optimizer = layers(1.0)
    of(optimizer)[0].grad = None
    assert GradientGuard(CPU, may_drop=True).look(1, optimizer) == ()


def test_on_a_device_nobody_waits_and_flags_are_read_together() -> None:
    guard = GradientGuard(NO_WAIT, may_drop=True)
    optimizer = layers(1.0)
    said = []
    for step in range(1, 17):
        of(optimizer)[0].grad = torch.tensor([math.nan if step in (3, 11) else 1.0])
        said.append(guard.look(step, optimizer))
    assert [i + 1 for i, found in enumerate(said) if found] == [8, 16]
    assert said[7] == (BadGradient(3, False),)
    assert said[15] == (BadGradient(11, False),)
    of(optimizer)[0].grad = torch.tensor([math.inf])
    assert guard.look(17, optimizer) == ()
    assert guard.read() == (BadGradient(17, False),)
    assert guard.read() == ()


@pytest.mark.parametrize("options", [{"fp16": True}, {"deepspeed": "ds.json"}, {"fsdp": ["full_shard"]}])
def test_it_keeps_out_where_others_are_in_charge(options: dict[str, Any]) -> None:
    guard = GradientGuard(SimpleNamespace(**{**vars(CPU), **options}), may_drop=True)
    assert guard.look(1, layers(math.nan)) == ()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("waits", [True, False])
def test_on_a_gpu(tmp_path: Path, waits: bool) -> None:
    doctor = CurveDoctor()
    made, _ = run(tmp_path, doctor, broken=[37], max_steps=24, use_cpu=False, logging_nan_inf_filter=waits)
    assert nan_losses(doctor)
    assert is_finite(made.model) is waits


def test_a_resolved_gradient_is_no_trouble(tmp_path: Path) -> None:
    doctor = CurveDoctor()
    run(tmp_path, doctor, broken=[37], max_steps=24)
    assert nan_losses(doctor)[0].status is Status.RESOLVED
