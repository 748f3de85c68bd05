"""JSON lines: LLaMA-Factory, Detectron2, MMDetection, MMEngine, DeiT and loops of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from one_run import kinds, one, points

from diagnose.errors import NotALog
from diagnose.readers import read


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def factory(step: int, loss: float | None = 2.0, total: int = 100) -> dict[str, Any]:
    row = {
        "current_steps": step,
        "total_steps": total,
        "loss": loss,
        "lr": 1e-5,
        "epoch": step / 50,
        "percentage": step / total,
    }
    row |= {"elapsed_time": "9 days, 21:39:23", "remaining_time": "0:00:10", "throughput": 99.5, "total_tokens": 1024}
    if loss is None:
        del row["loss"], row["lr"]
    return row


def test_llama_factory(tmp_path):
    rows = [
        factory(10),
        factory(20, 1.5),
        {"current_steps": 20, "total_steps": 100, "eval_loss": 1.75, "epoch": 0.4},
        factory(20, None),
    ]
    run = one(lines(tmp_path / "out" / "trainer_log.jsonl", rows).parent)
    assert run.id == "out"
    assert set(run.series) == {"train/loss", "train/lr", "epoch", "eval/loss"}
    assert points(run, "train/loss") == [(10, 2.0), (20, 1.5)]
    assert run.settings == {"max_steps": 100}
    assert run.notes == ()


def test_a_predict_run_has_no_curve(tmp_path):
    rows = [{"current_steps": s, "total_steps": 60, "percentage": s / 60, "elapsed_time": "0:01:51"} for s in (5, 10)]
    with pytest.raises(NotALog, match="they hold current_steps, total_steps, percentage"):
        read(lines(tmp_path / "trainer_log.jsonl", rows))


def test_two_nodes_in_one_log_are_one_run(tmp_path):
    rows = []
    for step in range(10, 500, 10):
        rows.append(factory(step, 2.0 + 1 / step))
        if step > 20:  # the second node lags by two rows, and averages its own shard
            rows.append(factory(step - 20, 2.0001 + 1 / (step - 20)))
    run = one(lines(tmp_path / "trainer_log.jsonl", rows))
    assert points(run, "train/loss") == [(s, 2.0 + 1 / s) for s in range(10, 500, 10)]
    assert kinds(run) == ["repeated-rows"]


def test_a_node_that_averages_nothing_is_left_out_too(tmp_path):
    rows = [factory(10), factory(20)]
    for step in range(30, 500, 10):
        rows += [factory(step, 2.0), factory(step - 10, 3.0)]
    run = one(lines(tmp_path / "trainer_log.jsonl", rows))
    assert points(run, "train/loss") == [(s, 2.0) for s in range(10, 500, 10)]
    assert kinds(run) == ["repeated-steps"]


@pytest.mark.parametrize("n", [3, 30])
def test_a_restart_with_the_same_seed_begins_with_the_same_loss(tmp_path, n):
    rows = [factory(10 * k, 3.0) for k in range(1, n)] + [factory(10, 3.0)] + [factory(10 * k, 9.0) for k in range(2, n)]
    first, second = read(lines(tmp_path / "trainer_log.jsonl", rows))
    assert [len(run.series["train/loss"]) for run in (first, second)] == [n - 1, n - 1]
    assert points(second, "train/loss")[:2] == [(10, 3.0), (20, 9.0)]


def test_a_restart_is_a_run_of_its_own(tmp_path):
    rows = [factory(s, 3.0) for s in (10, 20, 30)] + [factory(s, 1.0) for s in (5, 15, 25)] + [factory(s, 0.5) for s in (5, 15)]
    runs = read(lines(tmp_path / "trainer_log.jsonl", rows))
    assert [run.id for run in runs] == ["trainer_log", "trainer_log#2", "trainer_log#3"]
    assert [points(run, "train/loss")[0] for run in runs] == [(10, 3.0), (5, 1.0), (5, 0.5)]
    assert all(kinds(run) == ["mixed-runs"] for run in runs)


def test_a_resume_stays_one_run(tmp_path):
    rows = [factory(s, 3.0) for s in (10, 20, 30, 40)] + [factory(s, 1.0) for s in (30, 40, 50)]
    run = one(lines(tmp_path / "trainer_log.jsonl", rows))
    assert points(run, "train/loss") == [(10, 3.0), (20, 3.0), (30, 1.0), (40, 1.0), (50, 1.0)]
    assert kinds(run) == ["steps-go-back"]


@pytest.mark.parametrize("key", ["step", "global_step", "iteration", "iter", "Step", "trainer/global_step", "_step"])
def test_any_name_of_the_step(tmp_path, key):
    run = one(lines(tmp_path / "log.jsonl", [{key: s, "loss": 1.0} for s in (5, 10)]))
    assert points(run, "train/loss") == [(5, 1.0), (10, 1.0)]


def test_steps_as_text_with_the_total_behind_them(tmp_path):
    rows = [{"global_step/max_steps": f"{s}/58114", "loss": "1.5", "memory(GiB)": 40.1} for s in (1, 5)]
    assert points(one(lines(tmp_path / "logging.jsonl", rows)), "train/loss") == [(1, 1.5), (5, 1.5)]


def test_detectron2(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text(
        '{"iteration": 19, "total_loss": 3.5, "loss_cls": 1.5, "lr": 0.01, "data_time": 0.1, "eta_seconds": 9.0}\n'
        '{"iteration": 39, "total_loss": 2.5, "loss_cls": 0.5, "lr": 0.01, "data_time": 0.1, "eta_seconds": 8.0}\n'
        '{"iteration": 40, "bbox/AP": 75.5, "bbox/APs": NaN}\n'
    )
    run = one(path)
    assert points(run, "train/loss") == [(19, 3.5), (39, 2.5)]
    assert set(run.series) == {"train/loss", "train/loss_cls", "train/lr", "train/bbox/ap", "train/bbox/aps"}


def test_mmdetection_counts_steps_within_each_epoch(tmp_path):
    rows: list[dict[str, Any]] = [{"env_info": "sys.platform: linux", "seed": 0, "exp_name": "c.py"}]
    for epoch in (1, 2):
        rows += [
            {"mode": "train", "epoch": epoch, "iter": i, "lr": 0.1, "memory": 6504, "loss": 2.0 - epoch / 2}
            for i in (10, 20, 30)
        ]
        rows.append({"mode": "val", "epoch": epoch, "iter": 8, "lr": 0.1, "mAP": 0.25 * epoch})
    run = one(lines(tmp_path / "None.log.json", rows))
    assert points(run, "train/loss") == [(10, 1.5), (20, 1.5), (30, 1.5), (40, 1.0), (50, 1.0), (60, 1.0)]
    assert points(run, "eval/map") == [(30, 0.25), (60, 0.5)]
    assert kinds(run) == ["steps-per-epoch"]


def test_mmengine_validates_at_the_epoch_s_number(tmp_path):
    rows: list[dict[str, Any]] = []
    for epoch in (1, 2):
        rows += [
            {"lr": 0.1, "loss": 2.0, "epoch": epoch, "iter": i, "step": i} for i in range(epoch * 50 - 49, epoch * 50 + 1, 7)
        ]
        rows.append({"coco/bbox_mAP": 0.25 * epoch, "time": 0.1, "step": epoch})
    run = one(lines(tmp_path / "vis_data" / "scalars.json", rows).parent)
    assert run.id == "vis_data"
    assert [s for s, _ in points(run, "eval/coco/bbox_map")] == [50, 100]
    assert run.notes == ()


def test_deit_rows_are_epochs_and_their_test_loss_is_the_evaluation(tmp_path):
    rows = [
        {"train_lr": 1e-3, "train_loss": 3.0 - e, "test_loss": 3.5 - e, "test_acc1": 50.0, "epoch": e, "n_parameters": 9}
        for e in range(3)
    ]
    run = one(lines(tmp_path / "log.txt", rows))
    assert points(run, "train/loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert points(run, "eval/loss") == [(0, 3.5), (1, 2.5), (2, 1.5)]
    assert set(run.series) == {"train/loss", "train/lr", "eval/loss", "eval/acc1", "epoch"}
    assert kinds(run) == ["test-as-eval"]


def test_test_results_are_dropped_where_there_is_a_validation(tmp_path):
    rows = [{"epoch": e, "train_loss": 1.0, "val_loss": 2.0, "test_loss": 3.0} for e in range(2)]
    assert set(one(lines(tmp_path / "log.jsonl", rows)).series) == {"train/loss", "eval/loss", "epoch"}


def test_broken_lines_are_counted_and_left_out(tmp_path):
    path = lines(tmp_path / "log.jsonl", [{"step": s, "loss": 1.0} for s in range(1, 4)])
    text = path.read_text().splitlines()
    path.write_text("\n".join([text[0], "oops", "[1, 2]", "", text[1], "{" * 3000, text[2]]) + "\n")
    run = one(path)
    assert len(run.series["train/loss"]) == 3
    assert [n.text for n in run.notes] == ["3 lines left out: no JSON object, first in line 2"]


def test_a_last_line_that_is_cut_off(tmp_path):
    path = lines(tmp_path / "log.jsonl", [{"step": s, "loss": 1.0} for s in range(1, 4)])
    path.write_text(path.read_text()[:-8])
    run = one(path)
    assert len(run.series["train/loss"]) == 2
    assert kinds(run) == ["truncated"]


def test_rows_that_say_their_side_in_a_key_or_a_group(tmp_path):
    rows = [
        {"step": 1, "split": "train", "loss": 2.0},
        {"step": 1, "split": "val", "loss": 3.0},
        {"step": 1, "split": "test", "loss": 9.0},
    ]
    run = one(lines(tmp_path / "a.jsonl", rows))
    assert (points(run, "train/loss"), points(run, "eval/loss")) == ([(1, 2.0)], [(1, 3.0)])
    run = one(
        lines(
            tmp_path / "b.jsonl",
            [{"step": 1, "train": {"loss": 2.0, "acc": 0.5}, "val": {"loss": 3.0}, "metrics": {"lr": 0.1}}],
        )
    )
    assert {name: points(run, name)[0][1] for name in run.series} == {
        "train/loss": 2.0,
        "train/acc": 0.5,
        "eval/loss": 3.0,
        "train/lr": 0.1,
    }


def test_a_training_loss_under_its_own_name(tmp_path):
    run = one(
        lines(tmp_path / "a.jsonl", [{"step": 1, "policy_loss": 2.0, "kl": 0.1}, {"step": 2, "policy_loss": 1.0, "kl": 0.1}])
    )
    assert points(run, "train/loss") == [(1, 2.0), (2, 1.0)]
    assert kinds(run) == ["loss-by-name"]


def test_rows_without_step_or_epoch_are_counted(tmp_path):
    run = one(lines(tmp_path / "a.jsonl", [{"loss": 2.0}, {"loss": 1.0}]))
    assert points(run, "train/loss") == [(1, 2.0), (2, 1.0)]
    assert kinds(run) == ["counted-steps"]


def test_the_train_loss_is_the_train_loss_outside_the_trainer(tmp_path):
    run = one(lines(tmp_path / "a.jsonl", [{"step": 1, "train_loss": 2.0}, {"step": 2, "train_loss": 1.0}]))
    assert points(run, "train/loss") == [(1, 2.0), (2, 1.0)]


def test_evaluations_by_epoch_among_losses_by_step(tmp_path):
    rows: list[dict[str, Any]] = []
    for epoch in range(3):
        rows += [{"step": s, "train_loss": 2.0} for s in range(epoch * 100 + 10, epoch * 100 + 110, 10)]
        rows.append({"step": epoch, "val_loss": 3.0})
    run = one(lines(tmp_path / "log.jsonl", rows))
    assert points(run, "eval/loss") == [(100, 3.0), (200, 3.0), (300, 3.0)]
    assert len(run.series["train/loss"]) == 30
    assert kinds(run) == ["steps-by-epoch"]


def test_frequent_evaluations_in_the_steps_of_the_training_stay(tmp_path):
    rows = [{"step": s, **({"train_loss": 2.0} if side else {"val_loss": 3.0})} for s in range(5) for side in (True, False)]
    run = one(lines(tmp_path / "log.jsonl", rows))
    assert [s for s, _ in points(run, "eval/loss")] == [0, 1, 2, 3, 4]
