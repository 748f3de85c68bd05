"""What is one run and what is several, what each is called, and what is worth saying of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from event_files import scalar, text, write_events
from one_run import kinds

from diagnose.readers import Reading, read, read_tree


def rows(*steps: int, loss: float = 2.0) -> list[dict[str, Any]]:
    return [{"loss": loss + 1 / s if s else loss, "grad_norm": float("nan"), "epoch": s / 100, "step": s} for s in steps]


def state(path: Path, history: list[dict[str, Any]], **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings | {"log_history": history}))
    return path


def ids(reading: Reading) -> list[str]:
    return [run.id for run in reading.runs]


def test_a_folder_of_curves_is_named_by_its_files(tmp_path):
    for name in ("000cb4", "ffe1", "b.c"):
        state(tmp_path / "dev" / f"{name}.json", rows(10, 20))
    assert ids(read_tree([tmp_path / "dev"])) == ["000cb4", "b.c", "ffe1"]
    assert ids(read_tree([tmp_path])) == ["dev/000cb4", "dev/b.c", "dev/ffe1"]
    assert ids(read_tree([tmp_path / "dev" / "000cb4.json"])) == ["000cb4"]


def test_equal_curves_in_a_folder_of_curves_stay_two(tmp_path):
    for name in "ab":
        state(tmp_path / f"{name}.json", rows(10, 20, 30, 40))
    assert ids(read_tree([tmp_path])) == ["a", "b"]


def test_sources_are_paths_as_they_were_given(tmp_path, monkeypatch):
    state(tmp_path / "outputs" / "lora-a" / "trainer_state.json", rows(10))
    monkeypatch.chdir(tmp_path)
    (run,) = read("outputs")
    assert (run.id, run.source) == ("lora-a", "outputs/lora-a/trainer_state.json")
    (run,) = read("outputs/lora-a")
    assert (run.id, run.source) == ("lora-a", "outputs/lora-a/trainer_state.json")
    monkeypatch.chdir(tmp_path / "outputs" / "lora-a")
    (run,) = read(".")
    assert (run.id, run.source) == ("lora-a", "trainer_state.json")
    (run,) = read("trainer_state.json")
    assert (run.id, run.source) == ("trainer_state", "trainer_state.json")


def test_a_tree_of_checkpoints_is_one_run_the_longest(tmp_path):
    full = rows(*range(10, 70, 10))
    for n in (20, 40, 60):
        state(tmp_path / "outputs" / "lora-a" / f"checkpoint-{n}" / "trainer_state.json", full[: n // 10], max_steps=60)
    (tmp_path / "outputs" / "lora-a" / "checkpoint-60" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    reading = read_tree([tmp_path / "outputs"])
    (run,) = reading.runs
    assert reading.skipped == ()
    assert (run.id, run.last_step) == ("lora-a", 60)
    assert run.source.endswith("outputs/lora-a/checkpoint-60/trainer_state.json")
    assert run.settings == {"max_steps": 60, "method": "lora", "lora_r": 8}
    assert [n.text for n in run.notes] == ["shorter histories of the same run left out: checkpoint-20, checkpoint-40"]
    (run,) = read(tmp_path / "outputs" / "lora-a" / "checkpoint-40")
    assert (run.id, run.last_step) == ("checkpoint-40", 40)


def test_the_state_of_the_output_folder_itself_is_the_run(tmp_path):
    full = rows(*range(10, 70, 10))
    state(tmp_path / "a" / "checkpoint-60" / "trainer_state.json", full)
    state(tmp_path / "a" / "trainer_state.json", [*full, {"train_loss": 2.0, "train_runtime": 1.0, "step": 60}])
    (run,) = read(tmp_path)
    assert (run.id, run.source) == ("a", (tmp_path / "a" / "trainer_state.json").as_posix())


def test_a_checkpoint_of_another_history_is_a_run_of_its_own(tmp_path):
    state(tmp_path / "a" / "checkpoint-60" / "trainer_state.json", rows(*range(10, 70, 10)))
    state(tmp_path / "a" / "checkpoint-20" / "trainer_state.json", rows(10, 20, loss=7.0))
    assert ids(read_tree([tmp_path])) == ["a", "a/checkpoint-20"]


def test_a_broken_checkpoint_is_said_and_the_others_read(tmp_path):
    state(tmp_path / "a" / "checkpoint-20" / "trainer_state.json", rows(10, 20))
    (tmp_path / "a" / "checkpoint-40").mkdir()
    (tmp_path / "a" / "checkpoint-40" / "trainer_state.json").write_text("{")
    reading = read_tree([tmp_path])
    assert ids(reading) == ["a"]
    assert "broken or truncated JSON" in reading.skipped[0].reason


def test_logs_with_a_trainer_s_own_name_stand_for_their_folder(tmp_path):
    (tmp_path / "v0").mkdir()
    (tmp_path / "v0" / "metrics.csv").write_text("step,loss\n1,2.0\n2,1.0\n")
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "trainer_log.jsonl").write_text('{"current_steps": 1, "loss": 2.0}\n')
    (tmp_path / "v1" / "mine.csv").write_text("step,loss\n1,2.0\n2,1.0\n")
    write_events(tmp_path / "v2", [scalar("loss", 1, 2.0)])
    assert ids(read_tree([tmp_path])) == ["v0", "v1/mine.csv", "v1", "v2"]


def test_one_run_in_three_formats_is_told_once(tmp_path):
    history = rows(*range(10, 70, 10))
    state(tmp_path / "out" / "trainer_state.json", history, max_steps=60)
    lines = [json.dumps({"current_steps": r["step"], "loss": round(r["loss"], 4), "epoch": r["epoch"]}) for r in history]
    (tmp_path / "out" / "trainer_log.jsonl").write_text("\n".join(lines))
    losses = [scalar("train/loss", r["step"], r["loss"]) for r in history]
    write_events(tmp_path / "out" / "runs" / "Dec01_host", [text("args", '{"learning_rate": 0.5, "max_steps": 9}'), *losses])
    reading = read_tree([tmp_path])
    assert ids(reading) == ["out"]
    assert reading.runs[0].source.endswith("trainer_state.json")
    assert kinds(reading.runs[0]) == ["told-twice", "told-twice"]
    assert reading.runs[0].settings == {"max_steps": 60, "learning_rate": 0.5}


def test_event_files_of_another_training_below_an_output_folder_are_their_own_run(tmp_path):
    state(tmp_path / "out" / "trainer_state.json", rows(*range(10, 70, 10)))
    write_events(tmp_path / "out" / "runs" / "Dec01_host", [scalar("train/loss", s, 9.0) for s in range(10, 70, 10)])
    assert ids(read_tree([tmp_path])) == ["out", "out/runs/Dec01_host"]


def test_ids_are_unique_over_all_arguments(tmp_path):
    for parent in "xy":
        state(tmp_path / parent / "lora" / "trainer_state.json", rows(10, 20))
        state(tmp_path / parent / "two" / "trainer_state.json", rows(10, 20, 10, 20) if parent == "x" else rows(10))
    (tmp_path / "z.jsonl").write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 1.0}\n{"step": 1, "loss": 5.0}\n')
    reading = read_tree([tmp_path / "x", tmp_path / "y", tmp_path / "z.jsonl"])
    assert ids(reading) == ["lora", "two", "lora#2", "two#2", "z", "z#2"]


def test_a_path_that_is_given_twice_is_read_once(tmp_path):
    state(tmp_path / "a" / "trainer_state.json", rows(10, 20))
    reading = read_tree([tmp_path, tmp_path / "a", tmp_path / "nope", tmp_path / "nope"])
    assert ids(reading) == ["a"]
    assert len(reading.skipped) == 1


def test_content_counts_more_than_the_name(tmp_path):
    files = {
        "history.txt": '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n',
        "log.json": '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n',
        "odd.log": "step\tloss\n1\t2.0\n2\t1.0\n",
        "late.json": json.dumps({"padding": "x" * 100_000, "log_history": rows(1, 2)}),
        "list.json": json.dumps(rows(1, 2)),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    reading = read_tree([tmp_path])
    assert [run.last_step for run in reading.runs] == [2] * len(files)
    path = write_events(tmp_path / "tb", [scalar("loss", 1, 2.0)])
    path.rename(path.with_name("renamed"))
    assert read(path.with_name("renamed"))[0].last_step == 1


def test_a_link_to_a_folder_is_followed_once(tmp_path):
    state(tmp_path / "real" / "trainer_state.json", rows(10))
    (tmp_path / "again").symlink_to(tmp_path / "real")
    assert len(read_tree([tmp_path]).runs) == 1


@pytest.mark.parametrize("depth", [200])
def test_deep_folders(tmp_path, depth):
    folder = tmp_path
    for _ in range(depth):
        folder = folder / "d"
    state(folder / "trainer_state.json", rows(10))
    assert len(read(tmp_path)) == 1
