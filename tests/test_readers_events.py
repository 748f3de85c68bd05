"""TensorBoard event files: Trainer, Keras, Lightning and plain SummaryWriter, whole, split and damaged."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from event_files import BEGAN, scalar, tensor, text, write_events
from one_run import kinds, one, points

from diagnose.errors import NotALog, ReadError
from diagnose.readers import read, read_tree


def trainer_events(steps: range, *, loss: float = 2.0, evals: tuple[int, ...] = ()) -> list:
    events = []
    for step in steps:
        events += [scalar("train/loss", step, loss, step), scalar("train/grad_norm", step, 1.0, step)]
        events += [scalar("train/learning_rate", step, 0.5, step), scalar("train/epoch", step, step / 100, step)]
        if step in evals:
            events += [scalar("eval/loss", step, loss + 0.5, step), scalar("eval/runtime", step, 3.0, step)]
    return events


CLOSING = [
    scalar("train/train_loss", 30, 1.25, 40),
    scalar("train/train_runtime", 30, 60.0, 40),
    scalar("train/total_flos", 30, 1e12, 40),
]


def test_trainer_tags_become_canonical_and_the_closing_summary_is_no_point(tmp_path):
    write_events(tmp_path / "out", [*trainer_events(range(10, 40, 10), evals=(30,)), *CLOSING])
    run = one(tmp_path / "out")
    assert set(run.series) == {"train/loss", "train/grad_norm", "train/lr", "epoch", "eval/loss"}
    assert points(run, "train/loss") == [(10, 2.0), (20, 2.0), (30, 2.0)]
    assert points(run, "eval/loss") == [(30, 2.5)]
    assert run.series["train/loss"].span.tolist() == [10, 10, 10]
    assert (run.id, run.source) == ("out", (tmp_path / "out").as_posix())


def test_the_trainer_s_arguments_are_settings(tmp_path):
    arguments = (
        '{"learning_rate": 5e-05, "num_train_epochs": 3, "output_dir": "/home/me/out", "seed": 7, "optim": "adamw_torch"}'
    )
    write_events(tmp_path, [text("args", arguments), *trainer_events(range(10, 40, 10))])
    assert one(tmp_path).settings == {"learning_rate": 5e-05, "num_train_epochs": 3, "seed": 7, "optim": "adamw_torch"}


def test_the_final_evaluation_in_a_file_of_its_own_belongs_to_the_run(tmp_path):
    write_events(tmp_path, [text("args", "{}"), *trainer_events(range(10, 40, 10), evals=(10, 30)), *CLOSING])
    write_events(tmp_path, [scalar("eval/loss", 30, 2.25, 90), scalar("train/epoch", 30, 0.3, 90)], began=90, number=1)
    run = one(tmp_path)
    assert points(run, "eval/loss") == [(10, 2.5), (30, 2.5)]


def test_files_that_start_again_are_runs_of_their_own(tmp_path):
    for k in range(16):
        write_events(tmp_path, trainer_events(range(5, 25, 5), loss=float(k)), began=k * 100, number=k)
    runs = read(tmp_path)
    assert [run.id for run in runs] == [tmp_path.name, *(f"{tmp_path.name}#{k}" for k in range(2, 17))]
    assert [points(run, "train/loss")[0] for run in runs] == [(5, float(k)) for k in range(16)]
    assert all("mixed-runs" in kinds(run) for run in runs)


def test_an_evaluation_goes_to_the_run_of_its_own_process(tmp_path):
    write_events(tmp_path, [text("args", "{}"), *trainer_events(range(10, 40, 10))], process=1)
    write_events(tmp_path, [text("args", "{}"), *trainer_events(range(10, 40, 10))], began=5, process=2)
    write_events(tmp_path, [scalar("eval/loss", 30, 9.0)], began=99, process=1, number=1)
    first, second = read(tmp_path)
    assert points(first, "eval/loss") == [(30, 9.0)]
    assert "eval/loss" not in second.series


def test_a_new_training_is_not_the_resume_of_a_lonely_evaluation(tmp_path):
    write_events(tmp_path, [scalar("eval/loss", 10, 9.0)], process=1)
    write_events(
        tmp_path, [text("args", "{}"), scalar("train/loss", 500, 1.0), scalar("eval/loss", 500, 2.0)], began=9, process=2
    )
    assert [run.last_step for run in read(tmp_path)] == [10, 500]


def test_a_resume_goes_on_and_replaces_what_the_first_attempt_logged_later(tmp_path):
    write_events(tmp_path, trainer_events(range(10, 110, 10), loss=2.0), process=1)
    resumed = [scalar("train/loss", step, 1.0, 200 + step) for step in range(60, 140, 10)]
    write_events(tmp_path, resumed, began=200, process=2)
    run = one(tmp_path)
    assert points(run, "train/loss") == [(s, 2.0 if s < 60 else 1.0) for s in range(10, 140, 10)]
    assert "steps-go-back" in kinds(run)


def test_a_run_that_logs_more_seldom_from_the_start_is_no_resume(tmp_path):
    write_events(tmp_path, [scalar("train/loss", s, 2.0, s) for s in range(10, 110, 10)], process=1)
    write_events(tmp_path, [scalar("train/loss", s, 1.0, 200 + s) for s in range(50, 250, 50)], began=200, process=2)
    assert [run.last_step for run in read(tmp_path)] == [100, 200]


def test_keras_sides_are_one_run(tmp_path):
    def side(values: list[float]) -> list:
        return [tensor("epoch_loss", i, i, dtype=1, tensor_content=struct.pack("<f", v)) for i, v in enumerate(values)] + [
            tensor("epoch_accuracy", i, i, dtype=1, float_val=[0.5]) for i in range(len(values))
        ]

    vs = [tensor("evaluation_loss_vs_iterations", 4 * i, i, dtype=1, float_val=[9.0]) for i in range(1, 4)]
    write_events(tmp_path / "k" / "train", side([3.0, 2.0, 1.0]), v2=True)
    write_events(tmp_path / "k" / "validation", [*side([3.5, 2.5, 1.5]), *vs], began=4, number=1, v2=True)
    run = one(tmp_path)
    assert run.id == "k"
    assert points(run, "train/loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert points(run, "eval/loss") == [(0, 3.5), (1, 2.5), (2, 1.5)]
    assert set(run.series) == {"train/loss", "eval/loss", "train/accuracy", "eval/accuracy"}


def test_keras_starts_are_paired_with_the_validation_that_followed_them(tmp_path):
    for k, value in enumerate((1.0, 2.0)):
        train = [tensor("epoch_loss", i, 100 * k + i, dtype=1, float_val=[value]) for i in range(3)]
        valid = [tensor("epoch_loss", i, 100 * k + i, dtype=1, float_val=[value + 10]) for i in range(3)]
        write_events(tmp_path / "train", train, began=100 * k, number=2 * k, v2=True)
        write_events(tmp_path / "validation", valid, began=100 * k + 2, number=2 * k + 1, v2=True)
    graph_only = [tensor("keras", 0, dtype=7, string_val=[b"{}"])]
    write_events(tmp_path / "train", graph_only, began=50, number=9, v2=True)
    reading = read_tree([tmp_path])
    assert [(points(r, "train/loss")[0], points(r, "eval/loss")[0]) for r in reading.runs] == [
        ((0, 1.0), (0, 11.0)),
        ((0, 2.0), (0, 12.0)),
    ]
    assert "no scalars in 1 of its 5 event files" in reading.skipped[0].reason


def test_a_side_folder_by_itself_keeps_its_side(tmp_path):
    write_events(tmp_path / "validation", [tensor("epoch_loss", i, dtype=1, float_val=[2.0]) for i in range(3)], v2=True)
    assert list(one(tmp_path / "validation").series) == ["eval/loss"]


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"dtype": 1, "float_val": [1.5]}, 1.5),
        ({"dtype": 1, "tensor_content": struct.pack("<f", 1.5)}, 1.5),
        ({"dtype": 2, "double_val": [1.1]}, 1.1),
        ({"dtype": 2, "tensor_content": struct.pack("<d", 1.1)}, 1.1),
        ({"dtype": 3, "int_val": [7]}, 7.0),
        ({"dtype": 9, "tensor_content": struct.pack("<q", -7)}, -7.0),
        ({"dtype": 19, "half_val": [0x3E00]}, 1.5),
        ({"dtype": 14, "half_val": [0x3FC0]}, 1.5),
        ({"dtype": 19, "tensor_content": struct.pack("<e", 1.5)}, 1.5),
        ({"dtype": 14, "tensor_content": b"\xc0\x3f"}, 1.5),
        ({"dtype": 1}, 0.0),
    ],
)
def test_a_scalar_in_a_tensor_of_any_number_type(tmp_path, fields, value):
    path = write_events(tmp_path, [tensor("loss", 1, **fields)])
    assert points(one(path), "train/loss") == [(1, value)]


def test_tensors_that_are_no_scalars_are_passed_over(tmp_path):
    shape = {"dim": [{"size": 2}]}
    events = [tensor("hist", 1, dtype=1, float_val=[1.0, 2.0], tensor_shape=shape), scalar("loss", 1, 2.0)]
    assert set(one(write_events(tmp_path, events)).series) == {"train/loss"}


def test_lightning(tmp_path):
    events = [scalar("hp_metric", 0, -1.0)]
    for step in range(49, 250, 50):
        events += [scalar("train_loss_step", step, 2.0, step), scalar("epoch", step, 0.0, step)]
        events += [scalar("lr-AdamW", step, 0.1, step)]
    events += [scalar("val_loss", 249, 3.0, 260), scalar("epoch", 249, 0.0, 260), scalar("train_loss_epoch", 249, 9.0, 260)]
    write_events(tmp_path, events)
    write_events(tmp_path, [scalar("hp_metric", 0, -1.0), scalar("test_loss", 250, 4.0)], began=300, number=1)
    run = one(tmp_path)
    assert set(run.series) == {"train/loss", "epoch", "train/lr", "eval/loss"}
    assert points(run, "train/loss") == [(s, 2.0) for s in (49, 99, 149, 199, 249)]
    assert "second-telling" in kinds(run)


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("Loss/train", "train/loss"),
        ("loss", "train/loss"),
        ("avg_loss", "train/loss"),
        ("Loss/val", "eval/loss"),
        ("Accuracy/val", "eval/accuracy"),
    ],
)
def test_free_tags(tmp_path, tag, name):
    assert list(one(write_events(tmp_path, [scalar(tag, 1, 2.0), scalar(tag, 2, 1.0)])).series) == [name]


def test_duplicate_and_backward_steps(tmp_path):
    steps = [1, 2, 2, 3, 4, 5, 3, 4, 5, 6]
    run = one(write_events(tmp_path, [scalar("loss", s, float(i), i) for i, s in enumerate(steps)]))
    assert points(run, "train/loss") == [(1, 0.0), (2, 1.0), (3, 6.0), (4, 7.0), (5, 8.0), (6, 9.0)]
    assert "steps-go-back" in kinds(run)


def test_one_file_that_starts_again_holds_two_runs(tmp_path):
    path = write_events(tmp_path, [scalar("loss", s, 1.0 + i, i) for i, s in enumerate([1, 2, 3, 1, 2, 3])])
    assert [points(run, "train/loss")[0] for run in read(path)] == [(1, 1.0), (1, 4.0)]


def test_evaluations_by_epoch_are_put_where_the_clock_says(tmp_path):
    events = []
    for epoch in range(3):
        events += [scalar("train_loss", s, 1.0, s) for s in range(epoch * 100, epoch * 100 + 100)]
        events.append(scalar("val_loss", epoch, 2.0 + epoch, epoch * 100 + 99.5))
    run = one(write_events(tmp_path, events))
    assert points(run, "eval/loss") == [(99, 2.0), (199, 3.0), (299, 4.0)]
    assert "steps-by-epoch" in kinds(run)


def test_evaluations_in_the_steps_of_the_training_stay(tmp_path):
    events = [scalar("train_loss", s, 1.0, s) for s in range(4)] + [scalar("val_loss", s, 2.0, s) for s in range(4)]
    assert [s for s, _ in points(one(write_events(tmp_path, events)), "eval/loss")] == [0, 1, 2, 3]


def test_nan_and_inf_are_kept(tmp_path):
    run = one(
        write_events(tmp_path, [scalar("loss", 1, float("nan")), scalar("loss", 2, float("inf")), scalar("loss", 3, -1.0)])
    )
    assert np.array_equal(run.series["train/loss"].value, [np.nan, np.inf, -1.0], equal_nan=True)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_cut_off_record_is_noted(tmp_path, cut):
    path = write_events(tmp_path, trainer_events(range(10, 60, 10)))
    path.write_bytes(path.read_bytes()[:-cut])
    run = one(path)
    assert len(run.series["train/loss"]) == 5
    assert "truncated" in kinds(run)


def test_a_damaged_tail_is_noted(tmp_path):
    path = write_events(tmp_path, trainer_events(range(10, 60, 10)))
    junk = b"\xff" * 30
    path.write_bytes(path.read_bytes() + struct.pack("<QI", len(junk), 0) + junk + b"\0" * 4)
    run = one(path)
    assert len(run.series["train/loss"]) == 5
    assert "corrupt" in kinds(run)


def test_a_damaged_record_in_the_middle_costs_that_record_only(tmp_path):
    path = write_events(tmp_path, [scalar("loss", s, 2.0) for s in range(1, 11)])
    content = path.read_bytes()
    size = (len(content) - content.index(b"brain.Event:2") - 17) // 10
    start = len(content) - 5 * size + 12
    path.write_bytes(content[:start] + b"\xff" * (size - 16) + content[start + size - 16 :])
    run = one(path)
    assert [s for s, _ in points(run, "train/loss")] == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert "corrupt" in kinds(run)


def test_a_preallocated_tail_of_zeros_ends_the_file(tmp_path):
    path = write_events(tmp_path, trainer_events(range(10, 60, 10)))
    path.write_bytes(path.read_bytes() + bytes(1 << 12))
    assert len(one(path).series["train/loss"]) == 5


def test_files_without_a_curve_say_what_they_hold(tmp_path):
    path = write_events(tmp_path / "a", [scalar("hp_metric", 0, -1.0)])
    with pytest.raises(NotALog, match="only hp_metric"):
        read(path)
    path = write_events(tmp_path / "b", [text("note", "hello")])
    with pytest.raises(NotALog, match="only graphs, texts or images"):
        read(path)
    path = tmp_path / "events.out.tfevents.1.host.2.0"
    path.write_bytes(b"this is no event file at all, whatever its name says")
    with pytest.raises(ReadError, match="no event file"):
        read(path)


def test_many_points_come_unsampled(tmp_path):
    n = 20_000  # twice what TensorBoard keeps of a tag
    run = one(write_events(tmp_path, [scalar("train/loss", i, 9.0 if i == 12_345 else 1.0) for i in range(n)]))
    assert len(run.series["train/loss"]) == n
    assert run.series["train/loss"].value[12_345] == 9.0


def test_the_torch_writer_with_a_folder_for_each_curve(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "run"))
    for step in range(5):
        writer.add_scalar("lr", 0.1, step)
        writer.add_scalars("Loss", {"train": 3.0 - step / 10, "val": 4.0}, step)
    writer.close()
    run = one(tmp_path)
    assert run.id == "run"
    assert set(run.series) == {"train/lr", "train/loss", "eval/loss"}
    assert run.series["train/loss"].value == pytest.approx([3.0, 2.9, 2.8, 2.7, 2.6])


def test_what_the_hparams_plugin_writes_is_not_worth_a_word(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar("loss", 1.0, 1)
    writer.close()
    writer = SummaryWriter(str(tmp_path / "1700000000.123"))
    from torch.utils.tensorboard.summary import hparams

    for summary in hparams({"lr": 0.1}, {}):
        writer.file_writer.add_summary(summary)
    writer.close()
    reading = read_tree([tmp_path])
    assert len(reading.runs) == 1
    assert reading.skipped == ()


def test_files_are_ordered_by_the_clock_in_any_form_of_their_names(tmp_path):
    write_events(tmp_path, [scalar("loss", s, 1.0) for s in (1, 2, 3)]).rename(tmp_path / f"events.out.tfevents.{BEGAN + 9}.z")
    write_events(tmp_path, [scalar("loss", s, 2.0) for s in (1, 2, 3)]).rename(tmp_path / f"events.out.tfevents.{BEGAN}.zz.v2")
    write_events(tmp_path, [scalar("loss", s, 3.0) for s in (1, 2, 3)], began=20, process=7, v2=True)
    assert [points(run, "train/loss")[0] for run in read(tmp_path)] == [(1, 2.0), (1, 1.0), (1, 3.0)]
