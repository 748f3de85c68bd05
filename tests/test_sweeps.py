"""The recorded learning-rate sweeps of `fixtures/sweeps`: complete, well-formed, and with every kind of truth."""

from __future__ import annotations

import math
import sys
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from diagnose.names import EPOCH, EVAL_LOSS, GRAD_NORM, LEARNING_RATE, TRAIN_LOSS
from diagnose.readers import read_tree
from diagnose.rows import build_run, peak_learning_rate

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
sys.path.insert(0, str(FIXTURES))  # the scripts there are in no package and import each other

import record_sweeps  # noqa: E402 - after the path is known
import sweeps as module  # noqa: E402 - likewise

if TYPE_CHECKING:
    from sweeps import Sweep

LARGEST_FOLDER = 1_500_000
#: Names are known without reading; the files are read once.
NAMES = sorted(path.name.removesuffix(module.SUFFIX) for path in module.FOLDER.glob(f"*{module.SUFFIX}"))

each_sweep = pytest.mark.parametrize("name", NAMES)


@cache
def sweeps() -> dict[str, Sweep]:
    """Every recorded sweep by its name."""
    return {sweep.name: sweep for sweep in module.load_sweeps()}


def drawn(finals: list[float], start: float = 4.0) -> Sweep:
    """A sweep whose runs end at these evaluation losses."""
    logs = ([{"step": 1, "eval_loss": start}, {"step": 2, "eval_loss": final}] for final in finals)
    runs = [build_run((module.row_from_log(row, row["step"]) for row in log), id="drawn", source="") for log in logs]
    return module.Sweep("drawn", {}, {}, start, tuple(10.0**i for i in range(len(finals))), tuple(runs))


def test_there_are_enough_of_every_kind():
    trainings = [sweep.training for sweep in sweeps().values()]
    assert list(sweeps()) == NAMES
    assert set(NAMES) == {sweep.name for sweep in record_sweeps.SWEEPS}
    assert sum(len(sweep.runs) for sweep in sweeps().values()) >= 100
    assert {t["method"] for t in trainings} == {"lora", "full"}
    assert {t["schedule"] for t in trainings} >= {"cosine", "constant"}
    assert len({t["text"] for t in trainings}) >= 3
    assert len({t["batch"] for t in trainings}) >= 2


def test_every_truth_occurs_and_none_is_rare():
    words = Counter(word for sweep in sweeps().values() for word in module.truth(sweep))
    assert set(words) == {"up", "hold", "down"}
    assert min(words.values()) >= sum(words.values()) / 10


def test_the_folder_is_small_and_no_run_to_the_reader():
    assert sum(path.stat().st_size for path in module.FOLDER.iterdir()) < LARGEST_FOLDER
    reading = read_tree([FIXTURES])
    assert not [run.id for run in reading.runs if "sweeps" in run.id or "sweeps" in run.source]
    assert not [skipped for skipped in reading.skipped if "sweeps" in str(skipped)]


@each_sweep
def test_nine_rates_a_factor_of_three_apart_and_the_best_within(name: str):
    sweep = sweeps()[name]
    assert len(sweep.rates) == len(sweep.runs) == 9
    assert all(2.9 < high / low < 3.4 for low, high in pairwise(sweep.rates))
    assert 0 < sweep.finals.index(min(sweep.finals)) < 8
    assert min(sweep.finals) < sweep.start < math.log(256) + 1
    words = module.truth(sweep)
    assert (words[0], words[sweep.finals.index(min(sweep.finals))], words[-1]) == ("up", "hold", "down")


@each_sweep
def test_every_run_is_whole_and_tells_its_settings(name: str):
    sweep = sweeps()[name]
    steps, evaluate, log = (sweep.training[k] for k in ("steps", "evaluate", "log"))
    for rate, run in zip(sweep.rates, sweep.runs, strict=True):
        assert set(run.series) == {TRAIN_LOSS, EVAL_LOSS, GRAD_NORM, LEARNING_RATE, EPOCH}
        assert not run.notes
        for metric in (TRAIN_LOSS, GRAD_NORM, LEARNING_RATE):
            assert run.series[metric].step.tolist() == list(range(log, steps + 1, log))
        assert run.series[EVAL_LOSS].step.tolist() == list(range(evaluate, steps + 1, evaluate))
        assert np.all(np.diff(run.series[EPOCH].value) > 0)
        assert peak_learning_rate(run) == pytest.approx(rate, rel=0.01)
        assert run.settings["learning_rate"] == rate
        assert run.settings["method"] == sweep.training["method"]
        assert run.settings["max_steps"] == steps == run.last_step
        assert run.settings["per_device_train_batch_size"] == sweep.training["batch"]


def test_runs_of_one_sweep_begin_alike_and_part_by_their_rate():
    for sweep in sweeps().values():
        first = [float(run.series[TRAIN_LOSS].value[0]) for run in sweep.runs[:2]]
        assert first == pytest.approx([sweep.start] * 2, rel=0.25), sweep.name
        assert len(set(sweep.finals)) > 5, sweep.name


@pytest.mark.parametrize(
    ("finals", "words"),
    [
        # the largest drop is 2, so a gain of more than 0.2 counts
        ([3.9, 3.0, 2.0, 2.15, 2.5], "up up hold hold down"),
        ([2.25, 2.0, math.nan], "up hold down"),
        # a bad rate with a somewhat less bad one above it: the best of all counts
        ([2.0, 3.9, 3.0], "hold down down"),
        # lost, although the next one was luckier
        ([3.0, math.inf, 2.0], "up down hold"),
        ([math.nan, math.nan], "down down"),
    ],
)
def test_truth_is_told_by_the_other_rates(finals: list[float], words: str):
    assert module.truth(drawn(finals)) == words.split()


def test_what_is_written_is_read_again_and_the_same_bytes_come_of_it(tmp_path: Path):
    rows = [
        {"loss": 3.1234567, "grad_norm": math.nan, "learning_rate": 1e-3, "epoch": 0.5, "step": 2},
        {"eval_loss": 3.0, "epoch": 0.5, "step": 2},
        {"loss": 2.0, "grad_norm": 1.0, "learning_rate": 0.0, "epoch": 1.0, "step": 4},
    ]
    entry = {"learning_rate": 1e-3, **module.columns(rows)}
    assert [list(row) for row in module.log_history(entry)] == [
        list(module.TRAINED),
        list(module.EVALUATED),
        list(module.TRAINED),
    ]
    assert module.log_history(entry)[0]["loss"] == 3.12346
    content = {"name": "a", "training": {}, "settings": {"max_steps": 4}, "env": {}, "start": 4.0, "runs": [entry]}
    first, second = tmp_path / f"a{module.SUFFIX}", tmp_path / f"b{module.SUFFIX}"
    module.write(content, first)
    module.write(module.read(first), second)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(tmp_path.iterdir()) == [first, second]
    run = module.load_sweeps(tmp_path)[0].runs[0]
    assert run.id == "a-lr1e-3"
    assert run.series[TRAIN_LOSS].value.tolist() == [3.12346, 2.0]
    assert math.isnan(run.series[GRAD_NORM].value[0])
    assert run.settings == {"max_steps": 4, "learning_rate": 1e-3}


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / f"list{module.SUFFIX}"
    module.write([], path)
    with pytest.raises(ValueError, match=r"list\.json\.gz: expected the object that record_sweeps.py writes, got list"):
        module.read(path)


def test_unknown_sweeps_are_told_with_those_that_there_are(capsys: pytest.CaptureFixture[str]):
    assert record_sweeps.main(["lora-poetry"]) == 2
    assert "unknown: lora-poetry; there are: lora-capitals-cosine-b16" in capsys.readouterr().err


def test_uncommitted_scripts_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("what_to_record.git_state", lambda files: ("abc1234", "M fixtures/record.py"))
    assert record_sweeps.main(["lora-capitals-cosine-b16", "--out", str(tmp_path)]) == 2
    assert "M fixtures/record.py" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.train
@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft 0.21 under transformers 5.24
def test_a_sweep_is_recorded_and_goes_on_where_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("transformers")
    tiny = record_sweeps.replace(
        record_sweeps.SWEEPS[0], steps=4, evaluate=2, warmup=1, batch=2, width=32, layers=1, base=False
    )
    path = record_sweeps.record(tiny, [1e-3], {}, tmp_path)
    before = module.read(path)
    record_sweeps.record(tiny, [1e-3, 3e-1], {}, tmp_path)
    assert capsys.readouterr().out.count(tiny.name) == 2
    assert module.read(path)["runs"][0] == before["runs"][0]
    sweep = module.load_sweeps(tmp_path)[0]
    assert [run.settings["learning_rate"] for run in sweep.runs] == [1e-3, 3e-1]
    assert sweep.runs[0].settings["lora_r"] == 16
    assert sweep.runs[0].settings["max_steps"] == 4
    assert sweep.runs[0].series[TRAIN_LOSS].step.tolist() == [2, 4]
    assert sweep.start == pytest.approx(math.log(256), rel=0.1)
    assert float(sweep.runs[1].series[TRAIN_LOSS].value[-1]) != float(sweep.runs[0].series[TRAIN_LOSS].value[-1])
