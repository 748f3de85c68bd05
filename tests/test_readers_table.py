"""Tables: Lightning's `metrics.csv`, Keras's CSVLogger, YOLO's results, charts exported from TensorBoard and W&B."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_run import kinds, one, points

from diagnose.errors import NotALog
from diagnose.readers import read, read_tree


def table(path: Path, *rows: str, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(row + end for row in rows).encode())
    return path


LIGHTNING = ("epoch,train_loss,val_loss,step", "0,2.5,,49", "0,,3.5,57", "1,1.5,,99", "1,,2.5,115", "2,,,115")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n", "\r"])
def test_sparse_rows_with_the_step_in_the_last_column(tmp_path, end):
    run = one(table(tmp_path / "version_0" / "metrics.csv", *LIGHTNING, end=end).parent)
    assert run.id == "version_0"
    assert points(run, "train/loss") == [(49, 2.5), (99, 1.5)]
    assert points(run, "eval/loss") == [(57, 3.5), (115, 2.5)]
    assert points(run, "epoch") == [(49, 0.0), (57, 0.0), (99, 1.0), (115, 1.0)]
    assert run.notes == ()


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_any_delimiter(tmp_path, delimiter):
    run = one(table(tmp_path / "m.csv", *(row.replace(",", delimiter) for row in LIGHTNING)))
    assert points(run, "eval/loss") == [(57, 3.5), (115, 2.5)]


def test_decimal_commas_between_semicolons(tmp_path):
    assert points(one(table(tmp_path / "m.csv", "step;loss", "1;2,5", "2;1,5")), "train/loss") == [(1, 2.5), (2, 1.5)]


def test_step_losses_beside_epoch_averages(tmp_path):
    rows = ("epoch,step,train_loss_epoch,train_loss_step", "0,49,,2.5", "0,99,,2.0", "0,99,9.0,", "1,149,,1.5", "1,149,8.0,")
    run = one(table(tmp_path / "metrics.csv", *rows))
    assert points(run, "train/loss") == [(49, 2.5), (99, 2.0), (149, 1.5)]
    assert kinds(run) == ["second-telling"]
    run = one(table(tmp_path / "metrics.csv", "epoch,step,train_loss_epoch", "0,99,9.0", "1,149,8.0"))
    assert points(run, "train/loss") == [(99, 9.0), (149, 8.0)]


def test_only_a_validation_loss_and_a_test_at_the_end(tmp_path):
    run = one(table(tmp_path / "metrics.csv", "Test MSE,epoch,step,val_loss", ",0,2,4.5", ",1,5,5.5", "3.5,2,6,"))
    assert {name: len(series) for name, series in run.series.items()} == {"eval/loss": 2, "epoch": 2}


@pytest.mark.parametrize(
    ("header", "name"),
    [("Train loss", "train/loss"), ("loss/train", "train/loss"), ("Training Loss", "train/loss"), ("loss/val", "eval/loss")],
)
def test_other_names_of_the_loss(tmp_path, header, name):
    assert points(one(table(tmp_path / "m.csv", f"step,{header}", "1,2.5", "2,1.5")), name) == [(1, 2.5), (2, 1.5)]


def test_keras_epochs_are_steps(tmp_path):
    run = one(
        table(
            tmp_path / "training.log", "epoch,acc,loss,val_acc,val_loss", "0,0.5,2.5,0.4,3.5", "1,0.6,1.5,0.5,2.5", end="\r\r\n"
        )
    )
    assert points(run, "train/loss") == [(0, 2.5), (1, 1.5)]
    assert points(run, "eval/acc") == [(0, 0.4), (1, 0.5)]
    assert run.series["train/loss"].span.tolist() == [1, 1]
    assert run.notes == ()


def test_without_step_and_epoch_rows_are_counted(tmp_path):
    run = one(table(tmp_path / "h.csv", ",loss,val_loss", "0,2.5,3.5", "1,1.5,2.5"))
    assert points(run, "eval/loss") == [(1, 3.5), (2, 2.5)]
    assert kinds(run) == ["counted-steps"]
    assert set(run.series) == {"train/loss", "eval/loss"}


def test_epochs_that_repeat_are_no_steps(tmp_path):
    run = one(table(tmp_path / "h.csv", "epoch,loss", "0,2.5", "0,1.5", "1,1.0"))
    assert points(run, "train/loss") == [(1, 2.5), (2, 1.5), (3, 1.0)]
    assert points(run, "epoch") == [(1, 0.0), (2, 0.0), (3, 1.0)]


def test_a_restart_at_zero_with_and_without_a_second_header(tmp_path):
    first = ("epoch,loss", "0,2.5", "1,1.5", "2,1.0")
    for again in (first[1:], first):
        rows = (*first, *(row.replace("2.5", "7.5") for row in again))
        runs = read(table(tmp_path / "training.log", *rows))
        assert [points(run, "train/loss")[0] for run in runs] == [(0, 2.5), (0, 7.5)]
        assert all(kinds(run) == ["mixed-runs"] for run in runs)


def test_a_log_that_was_written_twice(tmp_path):
    rows = ("epoch,loss", "0,2.5", "0,2.5", "1,1.5", "1,1.5")
    run = one(table(tmp_path / "a.csv", rows[0], *[r.replace("epoch", "step") for r in rows[1:]]))
    assert run.series["train/loss"].value.tolist() == [2.5, 2.5, 1.5, 1.5]  # epochs that repeat are no steps
    run = one(table(tmp_path / "a.csv", "step,loss", *rows[1:]))
    assert points(run, "train/loss") == [(0, 2.5), (1, 1.5)]
    assert kinds(run) == ["repeated-rows"]


def test_texts_in_cells(tmp_path):
    run = one(table(tmp_path / "a.csv", "step,loss,when,grad_norm", "1,2.5,today,nan", "2,oops,today,inf", '3,"1.5",today,N/A'))
    assert points(run, "train/loss") == [(1, 2.5), (3, 1.5)]
    assert [n.text for n in run.notes] == ["1 value of loss dropped: not a number"]
    assert len(run.series["train/grad_norm"]) == 2


def test_rows_of_another_length(tmp_path):
    run = one(table(tmp_path / "a.csv", "step,loss,lr", "1,2.5,0.1", "2,1.5", "3,1.0,0.1,7,8", "", "4,0"))
    assert points(run, "train/loss") == [(1, 2.5), (2, 1.5), (3, 1.0), (4, 0.0)]
    assert kinds(run) == ["broken-lines"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_any_encoding(tmp_path, encoding):
    path = tmp_path / "m.csv"
    path.write_bytes("step,loss,größe\n1,2.5,3\n2,1.5,3\n".encode(encoding))
    assert points(one(path), "train/loss") == [(1, 2.5), (2, 1.5)]


def test_yolo_has_padded_headers_and_only_parts_of_a_loss(tmp_path):
    rows = (
        "   epoch,   train/box_loss,   train/cls_loss,   val/box_loss,   val/cls_loss,  x/lr0",
        "       0,              0.5,             0.25,            1.0,           0.25,  0.1",
        "       1,              0.25,            0.25,            0.5,           0.25,  0.1",
    )
    run = one(table(tmp_path / "exp" / "results.csv", *rows).parent)
    assert points(run, "train/loss") == [(0, 0.75), (1, 0.5)]
    assert points(run, "eval/loss") == [(0, 1.25), (1, 0.75)]
    assert kinds(run) == ["summed-loss"]


def test_a_chart_from_tensorboard_s_page(tmp_path):
    path = table(tmp_path / "run-lora-tag-train_loss.csv", "Wall time,Step,Value", "1700000000.5,10,2.5", "1700000001.5,20,1.5")
    assert points(one(path), "train/loss") == [(10, 2.5), (20, 1.5)]
    assert len(read_tree([tmp_path]).runs) == 1


def test_a_chart_from_wandb_holds_a_run_in_each_column(tmp_path):
    rows = (
        "Step," + ",".join(f'"{run} - train/loss{mark}"' for run in "ab" for mark in ("", "__MIN", "__MAX")),
        '"10","2.5","2.5","2.5","","",""',
        '"20","1.5","1.5","1.5","3.5","3.5","3.5"',
    )
    runs = read(table(tmp_path / "chart.csv", *rows))
    assert [(run.id, points(run, "train/loss")) for run in runs] == [
        ("chart/a", [(10, 2.5), (20, 1.5)]),
        ("chart/b", [(20, 3.5)]),
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("step,loss\n", "a table without rows"),
        ("\n\n\n", "no header"),
        ("name,size\na,1\n", "they hold name, size"),
        ("a\x00b,loss\n1,2\n", "a binary file"),
        ("step,loss\n1,oops\n", "no loss and no other metric"),
    ],
)
def test_what_is_no_log_says_why(tmp_path, content, why):
    path = tmp_path / "metrics.csv"
    path.write_text(content)
    with pytest.raises(NotALog, match=why):
        read(path)


def test_a_field_beyond_the_reader_s_limit_is_a_clear_error(tmp_path):
    path = table(tmp_path / "metrics.csv", "step,loss", '1,"' + "9" * 200_000 + '"')
    with pytest.raises(NotALog, match="no table: field larger than field limit"):
        read(path)
