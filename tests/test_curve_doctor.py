"""CurveDoctor's hooks, called by hand with a TrainerState and a list of rows."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the train extra")
pytestmark = pytest.mark.train

import torch
from tiny import arguments
from transformers import TrainerControl, TrainerState

from diagnose import CurveDoctor
from diagnose.callbacks import curve_doctor, output
from diagnose.errors import ConfigError
from diagnose.model import Status

NAN = math.nan


class Host:
    """The Trainer's side of the hooks."""

    def __init__(self, doctor: CurveDoctor, folder: Path, *, history: Any = (), is_first: bool = True) -> None:
        self.doctor = doctor
        self.args = arguments(folder)
        self.control = TrainerControl()
        self.state = TrainerState(max_steps=100, is_world_process_zero=is_first)
        self.state.log_history = [dict(row) for row in history]
        doctor.on_train_begin(self.args, self.state, self.control, model=None)

    def log(self, step: int, **logs: Any) -> bool:
        """One log call; whether the run is to stop."""
        self.state.global_step = step
        self.state.log_history.append({**logs, "step": step})
        self.doctor.on_log(self.args, self.state, self.control, logs=logs)
        return self.control.should_training_stop

    def losses(self, *losses: float) -> list[bool]:
        """Rows at steps 10, 20 …; which of them ended with the stop set."""
        return [self.log(10 * (i + 1), loss=loss, grad_norm=1.0, learning_rate=1e-3) for i, loss in enumerate(losses)]

    def end(self) -> None:
        self.doctor.on_train_end(self.args, self.state, self.control)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("curve-doctor: ")]


def found(doctor: CurveDoctor) -> list[tuple[str, int, int, Status]]:
    assert doctor.examination is not None
    return [(f.name, f.first_step, f.last_step, f.status) for f in doctor.examination.findings]


def test_stops_at_the_row_that_makes_it_sure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor = CurveDoctor()
    host = Host(doctor, tmp_path)
    assert host.losses(2.0, 1.8, NAN, NAN) == [False, False, False, True]
    assert found(doctor) == [("nan-loss", 30, 40, Status.OPEN)]
    told = lines(capsys)
    assert [line.partition(":")[2].split(":")[0] for line in told[:2]] == [
        " CD101 nan-loss (warning)",
        " CD101 nan-loss (error)",
    ]
    assert told[2:] == ["curve-doctor: stops the run at step 40 for nan-loss"]


def test_a_finding_that_only_goes_on_is_no_news(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(CurveDoctor(stop=False), tmp_path)
    assert host.losses(2.0, 1.8, *[NAN] * 20) == [False] * 22
    told = lines(capsys)
    assert len(told) == 3
    assert told[2] == "curve-doctor: would stop the run (stop=False) at step 40 for nan-loss"


def test_a_healthy_run_hears_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(CurveDoctor(), tmp_path)
    assert not any(host.losses(*(1.0 + math.exp(-i / 10) for i in range(40))))
    assert lines(capsys) == []


def test_every_process_decides_the_same_and_one_speaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = (2.0, 1.8, NAN, NAN)
    first = Host(CurveDoctor(), tmp_path / "a")
    second = Host(CurveDoctor(), tmp_path / "b", is_first=False)
    assert first.losses(*losses) == second.losses(*losses) == [False, False, False, True]
    assert found(first.doctor) == found(second.doctor)
    capsys.readouterr()
    second.doctor.on_save(second.args, second.state, second.control)
    second.end()
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "b").exists()
    assert (tmp_path / "a" / "curve_doctor.json").is_file()


def test_times_that_differ_between_processes_decide_nothing(tmp_path: Path) -> None:
    doctors = [CurveDoctor(), CurveDoctor()]
    for i, doctor in enumerate(doctors):
        host = Host(doctor, tmp_path, is_first=i == 0)
        for step in range(1, 30):
            host.log(step, loss=2.0 - step / 20, grad_norm=1.0)
            host.log(step, eval_loss=2.0, eval_runtime=10.0**i, eval_samples_per_second=NAN if i else 3.0)
    assert found(doctors[0]) == found(doctors[1])


def test_a_nan_gradient_stops_without_saving_weights_that_nobody_may_look_at(tmp_path: Path) -> None:
    host = Host(CurveDoctor(), tmp_path)
    host.args.fsdp = "full_shard"
    host.control.should_save = True
    assert not host.log(10, loss=2.0, grad_norm=1.0)
    assert host.control.should_save
    assert host.log(20, loss=NAN, grad_norm=NAN)
    assert not host.control.should_save


def test_a_stop_for_another_reason_lets_the_checkpoint_be_saved(tmp_path: Path) -> None:
    host = Host(CurveDoctor(), tmp_path)
    host.control.should_save = True
    assert host.losses(2.0, 1.8, NAN, NAN)[-1]
    assert host.control.should_save


HISTORY = [
    {"step": 10, "epoch": 0.1, "loss": 2.0, "grad_norm": 1.0},
    {"step": 20, "epoch": 0.2, "loss": NAN, "grad_norm": 1.0},
    {"step": 30, "epoch": 0.3, "loss": NAN, "grad_norm": 1.0},
]


def test_resumed_after_a_stop_the_past_is_silent_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor = CurveDoctor()
    host = Host(doctor, tmp_path, history=HISTORY)
    assert found(doctor) == [("nan-loss", 20, 30, Status.OPEN)]
    assert not host.control.should_training_stop
    assert not host.log(40, loss=1.8, grad_norm=1.0)
    assert not host.log(50, loss=1.7, grad_norm=1.0)
    assert found(doctor) == [("nan-loss", 20, 50, Status.RESOLVED)]
    assert [line.split(":")[1] for line in lines(capsys)] == [" CD101 nan-loss (resolved)"]


def test_resumed_after_a_stop_new_evidence_stops_again(tmp_path: Path) -> None:
    host = Host(CurveDoctor(), tmp_path, history=HISTORY)
    assert host.log(40, loss=NAN, grad_norm=1.0)


def test_resuming_gives_what_an_unbroken_run_gives(tmp_path: Path) -> None:
    rows = [(10 * i, 2.0 - i / 20 if i != 7 else NAN) for i in range(1, 20)]
    whole, resumed = CurveDoctor(), CurveDoctor()
    host = Host(whole, tmp_path)
    for step, loss in rows:
        host.log(step, loss=loss)
    later = Host(resumed, tmp_path, history=[{"step": step, "loss": loss} for step, loss in rows[:9]])
    for step, loss in rows[9:]:
        later.log(step, loss=loss)
    assert whole.examination is not None and resumed.examination is not None
    assert whole.examination.report() == resumed.examination.report()


def test_a_second_beginning_forgets_the_first(tmp_path: Path) -> None:
    doctor = CurveDoctor()
    Host(doctor, tmp_path).losses(2.0, NAN, NAN)
    again = Host(doctor, tmp_path)
    assert found(doctor) == []
    assert again.losses(2.0, 1.9, 1.8) == [False] * 3
    assert found(doctor) == []


def test_logs_may_hold_anything(tmp_path: Path) -> None:
    doctor = CurveDoctor()
    host = Host(doctor, tmp_path)
    host.log(1, loss=torch.tensor(2.0), grad_norm=np.float32(1.5), note="text", nothing=None, many=[1, 2])
    host.log(2, loss=np.array(1.9), grad_norm=torch.tensor([1.0]), table=torch.zeros(3), flag=True, **{"": 1.0})
    host.log(3, loss="1.8", grad_norm="nan", deep={"a": 1})
    host.log(3, train_runtime=1.0, train_loss=1.9)
    host.log(2, loss=5.0)
    doctor.on_log(host.args, host.state, host.control, logs=None)
    assert not doctor.failed
    assert doctor.examination is not None
    assert list(doctor.examination.curves["train/loss"].values) == pytest.approx([2.0, 1.9, 1.8])
    assert list(doctor.examination.curves["train/grad_norm"].values) == [1.5, 1.0]


def test_a_log_before_any_training_is_left_alone(tmp_path: Path) -> None:
    doctor = CurveDoctor()
    doctor.on_log(arguments(tmp_path), TrainerState(), TrainerControl(), logs={"eval_loss": NAN})
    doctor.on_train_end(arguments(tmp_path), TrainerState(), TrainerControl())
    assert doctor.examination is None
    assert not doctor.failed


def raising(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a bug of ours")


def test_an_exception_of_its_own_is_told_once_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(CurveDoctor(), tmp_path)
    monkeypatch.setattr(curve_doctor, "row_from_log", raising)
    assert host.losses(2.0, NAN, NAN) == [False] * 3
    host.end()
    assert lines(capsys) == ["curve-doctor: on_log failed (RuntimeError: a bug of ours); the training goes on"]


def test_settings_that_cannot_be_read_cost_only_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_doctor, "read_settings", raising)
    doctor = CurveDoctor()
    assert Host(doctor, tmp_path).losses(2.0, NAN, NAN) == [False, False, True]
    assert doctor.examination is not None
    assert doctor.examination.report().settings == {}


def test_a_report_that_cannot_be_drawn_is_still_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve_doctor, "show_report", raising)
    host = Host(CurveDoctor(), tmp_path)
    host.losses(2.0, 1.9)
    host.end()
    assert (tmp_path / "curve_doctor.json").is_file()
    assert len(lines(capsys)) == 1


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    host = Host(CurveDoctor(), tmp_path)
    host.args.output_dir = str(file)
    assert host.losses(2.0, NAN, NAN) == [False, False, True]
    host.end()
    out = capsys.readouterr().out
    assert out.count("the training goes on") == 1
    assert "SICK" in out


@pytest.mark.parametrize("make", [lambda: None, io.StringIO, lambda: open("/dev/full", "w", encoding="ascii")])  # noqa: PTH123, SIM115 - closed below
def test_an_output_that_takes_nothing_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    stdout = make()
    if isinstance(stdout, io.StringIO):
        stdout.close()
    doctor = CurveDoctor()
    host = Host(doctor, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert host.losses(2.0, NAN, NAN) == [False, False, True]
        host.end()
    assert not doctor.failed
    assert json.loads((tmp_path / "curve_doctor.json").read_text())["runs"][0]["verdict"] == "SICK"
    if stdout is not None and not stdout.closed:
        with pytest.raises(OSError, match="No space left"):
            stdout.close()


def test_the_report_is_printed_at_the_end_unless_it_is_not_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in (True, False):
        host = Host(CurveDoctor(report=wanted), tmp_path)
        host.losses(2.0, NAN, NAN)
        capsys.readouterr()
        host.end()
        assert ("SICK" in capsys.readouterr().out) is wanted


def test_the_file_holds_the_report_and_the_settings(tmp_path: Path) -> None:
    host = Host(CurveDoctor(), tmp_path / "my-run")
    host.losses(2.0, NAN, NAN)
    path = tmp_path / "my-run" / "curve_doctor.json"
    stopped = json.loads(path.read_text())
    assert stopped["runs"][0]["stop"] == {"stop": True, "step": 30, "code": "CD101", "best_step": None}
    host.end()
    written = json.loads(path.read_text())
    assert written["schema"] == 1
    assert written["settings"]["learning_rate"] == 1e-2
    assert written["settings"]["logging_nan_inf_filter"] is True
    assert written["runs"][0]["id"] == "my-run"
    about_the_curve = [f["name"] for f in written["runs"][0]["findings"] if f["metric"] != "settings"]
    assert about_the_curve == ["nan-loss"]
    assert [p.name for p in path.parent.iterdir()] == ["curve_doctor.json"]


def test_each_checkpoint_gets_the_file_too(tmp_path: Path) -> None:
    host = Host(CurveDoctor(), tmp_path)
    host.losses(2.0, 1.9)
    (tmp_path / "checkpoint-20").mkdir()
    host.doctor.on_save(host.args, host.state, host.control)
    content = (tmp_path / "checkpoint-20" / "curve_doctor.json").read_text()
    assert content == (tmp_path / "curve_doctor.json").read_text()
    assert json.loads(content)["runs"][0]["last_step"] == 20


def test_a_write_that_fails_leaves_the_earlier_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(CurveDoctor(), tmp_path)
    host.losses(2.0, 1.9)
    host.end()
    before = (tmp_path / "curve_doctor.json").read_text()
    monkeypatch.setattr(output.Path, "replace", lambda *_: raising())
    host.log(30, loss=1.8)
    host.end()
    assert (tmp_path / "curve_doctor.json").read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["curve_doctor.json"]


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"no option patiense, stopp; it has grace, ignore, on_finding, patience, report, "):
        CurveDoctor(stopp=True, patiense=3)


@pytest.mark.parametrize(
    "options",
    [
        {"stop": "yes"},
        {"stop": 1},
        {"stop": ["nan-loss", 5]},
        {"stop": ["many-epochs"]},
        {"patience": "3"},
        {"patience": 0},
        {"patience": 3, "thresholds": {"memorization": {"patience": 5}}},
        {"grace": -1},
        {"grace": "10"},
        {"on_finding": "print"},
        {"sample_prompts": "Hello"},
        {"sample_prompts": [1]},
        {"rollback": "yes"},
        {"report": 1},
        {"select": 5},
        {"select": ["no-such-rule"]},
        {"ignore": [None]},
        {"ignore": ["CD999"]},
        {"thresholds": ["nan-loss"]},
        {"thresholds": {5: {}}},
        {"thresholds": {"nan-loss": {"confirm": -1}}},
        {"thresholds": {"nan-loss": {"no_such": 1}}},
        {"thresholds": {"no-such-rule": {"confirm": 1}}},
    ],
)
def test_bad_values_are_refused_at_construction(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CurveDoctor(**options)


def test_rules_can_be_chosen_and_tuned(tmp_path: Path) -> None:
    assert Host(CurveDoctor(ignore=["nan-loss"]), tmp_path).losses(2.0, NAN, NAN) == [False] * 3
    patient = CurveDoctor(select=["nan-loss"], thresholds={"nan-loss": {"confirm": 3}})
    assert Host(patient, tmp_path).losses(2.0, NAN, NAN, NAN) == [False, False, False, True]


def test_it_can_be_built_again_from_json() -> None:
    options = {"stop": False, "select": ["CD1"], "ignore": ["CD103"], "thresholds": {"nan-loss": {"confirm": 3}}}
    assert CurveDoctor(**json.loads(json.dumps(options))).options.stop is False


def test_the_callback_stays_thin() -> None:
    """Statistics belong to the engine, and other callbacks to files of their own."""
    assert len(Path(curve_doctor.__file__).read_text().splitlines()) <= 300
