"""The doctor for any loop: told numbers, it says what `diagnose` says, and never raises."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest

from diagnose import Doctor, examine
from diagnose.errors import ConfigError
from diagnose.model import Finding, Row, Status
from diagnose.rows import build_run

NAN = math.nan


def test_it_says_when_to_stop_and_why() -> None:
    doctor = Doctor(settings={"learning_rate": 1e-3})
    stops = []
    for step, loss in enumerate([2.0, 1.9, NAN, NAN, 1.8], start=1):
        doctor.log(step, loss=loss, learning_rate=1e-3)
        stops.append(doctor.should_stop)
    assert stops == [False, False, False, True, True]
    assert doctor.why is not None and doctor.why.name == "nan-loss"
    assert [f.name for f in doctor.findings] == ["nan-loss"]


def test_it_concludes_what_a_log_of_the_same_numbers_gives() -> None:
    doctor, rows = Doctor(), []
    for step in range(1, 81):
        loss = 2.5 * 0.93**step
        doctor.log(step, step / 20, loss=loss, grad_norm=1.0)
        values = {"train/loss": loss, "train/grad_norm": 1.0}
        if step % 5 == 0:
            evaluation = 2.0 + abs(step - 25) / 40
            doctor.eval(loss=evaluation)
            values["eval/loss"] = evaluation
        rows.append(Row(step, values, step / 20))
    live, later = doctor.report(), examine(build_run(rows, id="run", source="live"))
    assert live.findings == later.findings
    assert live.verdict == later.verdict
    assert "memorization" in [f.name for f in live.findings]


def test_numbers_may_come_in_any_shape() -> None:
    doctor = Doctor()
    doctor.log(1, loss=np.float32(2.0), note="text", nothing=None, deep={"a": 1}, many=[1, 2])
    doctor.log(np.int64(2), loss="1.9")
    doctor.log(loss=np.array(1.8))
    doctor.log(step="four", loss=1.7)  # type: ignore[arg-type]  # what a careless loop may hand over
    doctor.log(step=NAN, loss=1.6)  # type: ignore[arg-type]  # likewise
    doctor.log(2, loss=9.0)
    track = doctor.examination.curves["train/loss"]
    assert list(track.values) == pytest.approx([2.0, 1.9, 1.8, 1.7, 1.6])
    assert list(track.steps) == [1, 2, 3, 4, 5]
    assert [note.kind for note in doctor.report().notes] == ["late-row"]


def test_a_bug_of_ours_is_logged_once_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    doctor = Doctor()
    monkeypatch.setattr(doctor.examination, "feed", lambda row: 1 / 0)
    for step in range(3):
        assert doctor.log(step, loss=1.0) == ()
    assert len([r for r in caplog.records if "the training goes on" in r.message]) == 1


def test_news_go_to_the_log_and_to_the_listener(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Finding] = []
    doctor = Doctor(on_finding=heard.append, stop=False)
    with caplog.at_level(logging.INFO, logger="diagnose"):
        for step, loss in enumerate([2.0, 1.9, NAN, NAN, 1.8, 1.7, 1.6], start=1):
            doctor.log(step, loss=loss)
    assert [r.levelname for r in caplog.records] == ["WARNING", "ERROR", "INFO"]
    assert [f.status for f in heard] == [Status.OPEN, Status.OPEN, Status.RESOLVED]
    assert not doctor.should_stop
    assert doctor.why is not None


def test_a_grace_puts_the_stop_off() -> None:
    doctor = Doctor(grace=6)
    stops = []
    for step in range(1, 9):
        doctor.log(step, loss=2.0 if step < 3 else NAN)
        stops.append(doctor.should_stop)
    assert stops == [False] * 6 + [True, True]


@pytest.mark.parametrize("options", [{"stop": "no-such-rule"}, {"grace": -1}, {"select": ["CD9"]}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Doctor(**options)
