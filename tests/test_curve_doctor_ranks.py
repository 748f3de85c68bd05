"""Two real processes under torchrun with gloo: both stop at the same step, one speaks, and nobody hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the train extra")
pytestmark = pytest.mark.train

HERE = Path(__file__).parent


TROUBLES = ("nan", "memorization", "healthy", "resumed")


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each of two processes said of each training."""
    folder = tmp_path_factory.mktemp("ranks")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(HERE / "rank_training.py"), str(folder), *TROUBLES],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: [json.loads((folder / f"rank-{rank}-{name}.json").read_text()) for rank in (0, 1)] for name in TROUBLES}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_both_processes_come_to_the_same(ranks_of: dict[str, list[dict[str, Any]]], trouble: str) -> None:
    first, second = ranks_of[trouble]
    for name in ("last_step", "findings", "stop", "finite"):
        assert first[name] == second[name], name
    assert not first["failed"] and not second["failed"]
    assert second["said"] == []


def test_nan_on_one_process_stops_both_at_the_same_step(ranks_of: dict[str, list[dict[str, Any]]]) -> None:
    first, _ = ranks_of["nan"]
    assert first["last_step"] == 7
    assert first["finite"]
    assert "curve-doctor: stops the run at step 7 for nan-loss" in first["said"]


def test_memorization_stops_both_and_the_best_is_loaded(ranks_of: dict[str, list[dict[str, Any]]]) -> None:
    first, _ = ranks_of["memorization"]
    assert first["last_step"] < 300
    assert any(line.startswith("curve-doctor: stops the run") for line in first["said"])


def test_a_healthy_run_ends_by_itself_and_goes_on_when_resumed(ranks_of: dict[str, list[dict[str, Any]]]) -> None:
    assert [ranks_of[name][0]["last_step"] for name in ("healthy", "resumed")] == [20, 20]
    assert [ranks_of[name][0]["stop"] for name in ("healthy", "resumed")] == [None, None]
    assert ranks_of["healthy"][0]["findings"] == ranks_of["resumed"][0]["findings"]
