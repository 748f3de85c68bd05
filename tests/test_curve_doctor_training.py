"""CurveDoctor in real trainings: it stops what must be stopped, and says what `diagnose` says of the log afterwards."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the train extra")
pytestmark = pytest.mark.train

import torch
from tiny import Classifier, trainer
from transformers import Trainer

from diagnose import CurveDoctor
from diagnose.callbacks import curve_doctor
from diagnose.examination import examine
from diagnose.model import Report, Verdict
from diagnose.readers import read

EVERY_10 = {"eval_strategy": "steps", "eval_steps": 10, "save_strategy": "steps", "save_steps": 10, "logging_steps": 5}


@dataclass
class Trained:
    """A training that is over."""

    doctor: CurveDoctor
    trainer: Trainer
    folder: Path
    out: str

    @property
    def report(self) -> Report:
        assert self.doctor.examination is not None
        return self.doctor.examination.report()

    @property
    def last_step(self) -> int:
        return int(self.trainer.state.global_step)

    def is_finite(self) -> bool:
        return all(bool(torch.isfinite(p).all()) for p in self.trainer.model.parameters())


def train(folder: Path, *, doctor: CurveDoctor | None = None, resume: Path | None = None, **options: Any) -> Trained:
    doctor = doctor or CurveDoctor()
    made = trainer(folder, [doctor], **options)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        made.train(resume_from_checkpoint=None if resume is None else str(resume))
    made.save_state()
    assert not doctor.failed, out.getvalue()
    return Trained(doctor, made, folder, out.getvalue())


def nan_filtered(folder: Path) -> Trained:
    return train(folder, model=Classifier(nan_from=6), save_strategy="steps", save_steps=2)


def nan_straddled(folder: Path) -> Trained:
    return train(folder, model=Classifier(nan_from=6), logging_steps=4)


def nan_shown(folder: Path) -> Trained:
    return train(folder, model=Classifier(nan_from=6), logging_nan_inf_filter=False)


def memorizing(folder: Path, **options: Any) -> Trained:
    return train(folder, random_labels=True, n=32, max_steps=400, load_best_model_at_end=True, **EVERY_10 | options)


def healthy(folder: Path) -> Trained:
    return train(folder, n=512, max_steps=200, disable_tqdm=False, **EVERY_10 | {"save_strategy": "no"})


RUNS: dict[str, Callable[[Path], Trained]] = {
    f.__name__: f for f in (nan_filtered, nan_straddled, nan_shown, memorizing, healthy)
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """A training by its name, run once."""
    done: dict[str, Trained] = {}

    def run(name: str) -> Trained:
        if name not in done:
            done[name] = RUNS[name](tmp_path_factory.mktemp(name))
        return done[name]

    return run


@pytest.mark.parametrize(
    "name",
    [
        "nan_filtered",  # the log says `loss 0.0`
        "nan_straddled",  # the log would show a plausible average
        "nan_shown",
    ],
)
def test_a_run_of_nan_is_stopped_at_its_second_step(run_of: Callable[[str], Trained], name: str) -> None:
    run = run_of(name)
    assert run.last_step == 7
    assert run.is_finite(), "both updates were dropped"
    stop = run.report.stop
    assert stop.because is not None
    assert (stop.stop, stop.step, stop.because.name) == (True, 7, "nan-loss")
    assert run.report.verdict is Verdict.SICK
    assert "curve-doctor: CD101 nan-loss (warning): the gradient was not finite at step 6: the update was dropped" in run.out
    assert "curve-doctor: stops the run at step 7 for nan-loss" in run.out


def test_weights_that_are_still_good_are_saved(run_of: Callable[[str], Trained]) -> None:
    run = run_of("nan_filtered")
    assert sorted(p.name for p in run.folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


def test_without_stop_a_ruined_run_goes_on_but_is_not_saved(tmp_path: Path) -> None:
    run = train(
        tmp_path,
        doctor=CurveDoctor(stop=False),
        model=Classifier(nan_from=6),
        save_strategy="steps",
        save_steps=4,
        save_total_limit=1,
    )
    assert run.last_step == 24
    assert not run.is_finite(), "stop=False drops nothing"
    assert run.report.stop.step == 6
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    assert "no checkpoint at step 8: the weights are not finite" in run.out


def test_memorization_is_stopped_and_the_best_is_loaded(run_of: Callable[[str], Trained]) -> None:
    run = run_of("memorizing")
    assert run.last_step < 100
    report = run.report
    assert report.stop.because is not None and report.best is not None
    assert report.stop.because.name == "memorization"
    assert report.stop.step == run.last_step
    assert report.best.step == report.stop.best_step == run.trainer.state.best_global_step < run.last_step
    assert run.trainer.state.best_model_checkpoint == str(run.folder / f"checkpoint-{report.best.step}")
    assert run.trainer.evaluate()["eval_loss"] == pytest.approx(report.best.value)
    assert f"the evaluation was best at step {report.best.step}" in run.out


def test_a_healthy_run_is_left_alone(run_of: Callable[[str], Trained]) -> None:
    run = run_of("healthy")
    assert run.last_step == 200
    assert not run.report.stop.stop
    assert run.report.verdict is Verdict.HEALTHY
    assert "curve-doctor: stops" not in run.out
    assert "HEALTHY" in run.out


def offline(folder: Path) -> Report:
    """What `diagnose` concludes from the folder."""
    (run,) = read(folder)
    return examine(run)


@pytest.mark.parametrize("name", RUNS)
def test_live_says_what_diagnose_says_of_the_log(run_of: Callable[[str], Trained], name: str) -> None:
    run = run_of(name)
    live, later = run.report, offline(run.folder)
    assert set(live.settings.items()) <= set(later.settings.items())
    same = {"id": live.id, "source": live.source, "settings": live.settings, "notes": live.notes}
    assert repr(replace(later, **same)) == repr(live)  # repr, since NaN does not equal itself


@pytest.mark.parametrize("name", RUNS)
def test_the_file_holds_what_was_said_live(run_of: Callable[[str], Trained], name: str) -> None:
    run = run_of(name)
    (written,) = json.loads((run.folder / "curve_doctor.json").read_text())["runs"]
    assert written["verdict"] == run.report.verdict.value
    assert written["stop"]["step"] == run.report.stop.step
    assert [f["message"] for f in written["findings"]] == [f.message for f in run.report.findings]


def test_a_resumed_run_ends_where_the_unbroken_one_did(run_of: Callable[[str], Trained], tmp_path: Path) -> None:
    whole = run_of("memorizing")
    assert whole.last_step > 20
    resumed = memorizing(tmp_path, resume=whole.folder / "checkpoint-20")
    assert resumed.last_step == whole.last_step
    assert [(f.key, f.message) for f in resumed.report.findings] == [(f.key, f.message) for f in whole.report.findings]
    assert resumed.report.stop == whole.report.stop
    assert offline(tmp_path).findings == resumed.report.findings


def test_resumed_after_the_stop_it_goes_on_until_new_evidence(run_of: Callable[[str], Trained], tmp_path: Path) -> None:
    whole = run_of("memorizing")
    resumed = memorizing(tmp_path, resume=whole.folder / f"checkpoint-{whole.last_step}")
    assert resumed.last_step == whole.last_step + 10  # the next evaluation is worse still
    assert resumed.out.count("curve-doctor: stops the run") == 1
    assert resumed.report.stop == whole.report.stop  # when it first had to be stopped


def test_a_second_try_after_out_of_memory_starts_afresh(tmp_path: Path) -> None:
    class Greedy(Classifier):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            if len(x) > 4 and self.n_steps >= 3:
                raise RuntimeError("CUDA out of memory.")
            return super().forward(x, labels)

    run = train(tmp_path, model=Greedy(), auto_find_batch_size=True, max_steps=12)
    assert run.last_step == 12
    assert list(run.doctor.examination.curves["train/loss"].steps) == list(range(1, 13))  # type: ignore[union-attr]
    assert "late-row" not in {note.kind for note in run.report.notes}
    assert run.report.settings["total_train_batch_size"] == 4, "as it was in the end"


def test_a_bug_of_its_own_does_not_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("a bug of ours")

    for name in ("read_settings", "row_from_log", "write_report", "show_report"):
        monkeypatch.setattr(curve_doctor, name, raising)
    doctor = CurveDoctor()
    made = trainer(tmp_path, [doctor], save_strategy="steps", save_steps=10)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        made.train()
    assert made.state.global_step == 24
    assert doctor.failed
    assert out.getvalue().count("a bug of ours") == 1


def test_it_changes_no_number_of_a_training(tmp_path: Path) -> None:
    with_doctor = train(tmp_path / "a", n=128).trainer.state.log_history
    made = trainer(tmp_path / "b", [], n=128)
    made.train()
    losses = [[row["loss"] for row in history if "loss" in row] for history in (with_doctor, made.state.log_history)]
    assert losses[0] == losses[1]
    assert all(map(math.isfinite, losses[0]))
