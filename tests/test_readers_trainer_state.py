"""`trainer_state.json` with every quirk that was met in public ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_run import kinds, one, points

from diagnose.errors import NotALog, ReadError
from diagnose.readers import read


def state(path: Path, rows: Any, **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"best_metric": None, **settings, "log_history": rows}, indent=2))
    return path


def train(*steps: int, loss: float = 2.0) -> list[dict[str, Any]]:
    return [{"epoch": s / 100, "grad_norm": 1.0, "learning_rate": 1e-4, "loss": loss + 1 / s, "step": s} for s in steps]


SUMMARY = {
    "epoch": 1.0,
    "step": 30,
    "total_flos": 1e12,
    "train_loss": 1.25,
    "train_runtime": 60.0,
    "train_steps_per_second": 0.5,
}


def test_rows_of_all_three_kinds(tmp_path):
    evaluation = {
        "epoch": 0.3,
        "eval_loss": 2.5,
        "eval_runtime": 3.0,
        "eval_samples_per_second": 9.0,
        "eval_wer": 0.5,
        "step": 30,
    }
    run = one(state(tmp_path / "trainer_state.json", [*train(10, 20, 30), evaluation, SUMMARY]))
    assert set(run.series) == {"train/loss", "train/grad_norm", "train/lr", "epoch", "eval/loss", "eval/wer"}
    assert points(run, "train/loss") == [(10, 2.1), (20, 2.05), (30, 2.0 + 1 / 30)]
    assert run.notes == ()
    assert (run.id, run.source) == ("trainer_state", (tmp_path / "trainer_state.json").as_posix())


def test_nan_and_infinity_tokens_quoted_numbers_lr_and_null(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text(
        '{"log_history": [{"loss": NaN, "grad_norm": null, "lr": "1e-4", "step": 1},'
        '{"loss": "2.5", "grad_norm": Infinity, "step": "2"}, {"loss": "nan", "grad_norm": -Infinity, "step": 3.0}]}'
    )
    run = one(path)
    assert np.array_equal(run.series["train/loss"].value, [math.nan, 2.5, math.nan], equal_nan=True)
    assert points(run, "train/grad_norm") == [(2, math.inf), (3, -math.inf)]
    assert points(run, "train/lr") == [(1, 1e-4)]
    assert run.notes == ()


def test_no_train_rows(tmp_path):
    run = one(
        state(tmp_path / "s.json", [{"eval_loss": 2.0, "epoch": 1.0, "step": 10}, {"eval_loss": 1.0, "epoch": 2.0, "step": 20}])
    )
    assert points(run, "eval/loss") == [(10, 2.0), (20, 1.0)]


def test_evaluation_before_the_first_train_row_and_after_the_summary(tmp_path):
    first, last = {"eval_loss": 5.0, "step": 0, "epoch": 0}, {"eval_loss": 2.0, "step": 30, "epoch": 1.0}
    run = one(
        state(tmp_path / "s.json", [first, *train(10, 20, 30), SUMMARY, last, {"eval_loss": 2.1, "eval_f1": 0.5, "step": 30}])
    )
    assert points(run, "eval/loss") == [(0, 5.0), (30, 2.0)]
    assert points(run, "eval/f1") == [(30, 0.5)]


def test_six_evaluation_sets_and_a_slash_in_a_name(tmp_path):
    names = ["a", "b", "c", "d/e", "squad_v2", "test"]
    rows = train(10) + [{f"eval_{n}_loss": i + 1.0, f"eval_{n}_runtime": 1.0, "step": 10} for i, n in enumerate(names)]
    run = one(state(tmp_path / "s.json", rows))
    assert {n for n in run.series if n.startswith("eval/")} == {f"eval/{n}_loss" for n in names}


def test_predict_rows_without_a_step_are_no_points(tmp_path):
    run = one(
        state(
            tmp_path / "s.json", [*train(10, 20), {"predict_loss": 9.0, "predict_runtime": 3.0}, {"test_loss": 8.0, "step": 20}]
        )
    )
    assert set(run.series) == {"train/loss", "train/grad_norm", "train/lr", "epoch"}
    assert run.notes == ()


def test_rows_without_any_step_are_counted_over_the_whole_history(tmp_path):
    rows = [
        {"loss": 3.0, "epoch": 1},
        {"eval_loss": 2.5, "epoch": 1},
        {"loss": 2.0, "epoch": 2},
        {"train_loss": 2.5, "train_runtime": 9.0},
    ]
    run = one(state(tmp_path / "s.json", rows))
    assert points(run, "train/loss") == [(1, 3.0), (3, 2.0)]
    assert points(run, "eval/loss") == [(2, 2.5)]
    assert kinds(run) == ["counted-steps"]


def test_a_final_evaluation_without_a_step_stands_at_the_last_one(tmp_path):
    run = one(state(tmp_path / "s.json", [*train(10, 20), {"eval_loss": 2.5, "epoch": 1}]))
    assert points(run, "eval/loss") == [(20, 2.5)]


def test_the_same_step_twice_and_a_row_that_is_repeated(tmp_path):
    rows = train(10, 20)
    run = one(state(tmp_path / "s.json", [*rows, rows[-1], {"loss": 9.0, "step": 20}]))
    assert points(run, "train/loss") == [(10, 2.1), (20, 2.05)]
    assert kinds(run) == ["repeated-rows", "repeated-steps"]


def test_a_resume_inside_the_history(tmp_path):
    run = one(state(tmp_path / "s.json", train(10, 20, 30, 40) + train(30, 40, 50, loss=1.0)))
    assert points(run, "train/loss") == [(10, 2.1), (20, 2.05), (30, 1.0 + 1 / 30), (40, 1.025), (50, 1.02)]
    assert kinds(run) == ["steps-go-back"]


def test_values_that_are_no_numbers_are_counted_once_for_each_metric(tmp_path):
    rows = train(10, 20, 30)
    rows[0] |= {"loss": "oops", "name": "a text is no metric", "eval_f1": {"macro": 0.5}, "eval_wer": 0.5}
    rows[1] |= {"loss": {"a": 1}, "eval_wer": "bad"}
    run = one(state(tmp_path / "s.json", rows))
    assert points(run, "train/loss") == [(30, 2.0 + 1 / 30)]
    assert sorted(n.text for n in run.notes if n.kind == "not-a-number") == [
        "1 value of eval_f1 dropped: not a number",
        "1 value of eval_wer dropped: not a number",
        "2 values of loss dropped: not a number",
    ]


def test_odd_numbers_are_kept_as_they_are(tmp_path):
    rows = [{"loss": v, "step": i} for i, v in enumerate([1e300, -3.0, 0.0, 0, 5])]
    assert one(state(tmp_path / "s.json", rows)).series["train/loss"].value.tolist() == [1e300, -3.0, 0.0, 0.0, 5.0]


def test_settings_by_the_trainer_s_names(tmp_path):
    run = one(
        state(
            tmp_path / "trainer_state.json",
            train(10),
            max_steps=500,
            num_train_epochs=2**63 - 1,
            logging_steps=10,
            eval_steps=0.5,
            save_steps=100,
            train_batch_size=8,
            best_global_step=20,
            best_model_checkpoint="out/checkpoint-20",
            num_input_tokens_seen=0,
            is_world_process_zero=True,
            trial_params=None,
        )
    )
    assert run.settings == {
        "max_steps": 500,
        "logging_steps": 10,
        "eval_steps": 0.5,
        "save_steps": 100,
        "train_batch_size": 8,
        "best_global_step": 20,
        "best_model_checkpoint": "out/checkpoint-20",
        "num_input_tokens_seen": 0,
    }


@pytest.mark.parametrize("where", ["/home/me/out/checkpoint-20", "C:\\out\\checkpoint-20"])
def test_no_absolute_path_becomes_a_setting(tmp_path, where):
    run = one(state(tmp_path / "trainer_state.json", train(10), best_model_checkpoint=where))
    assert run.settings["best_model_checkpoint"] == "checkpoint-20"


def test_settings_from_the_files_beside_it(tmp_path):
    state(tmp_path / "trainer_state.json", train(10), max_steps=50)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 16, "lora_alpha": 32}))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 32000, "id2label": {"0": "a", "1": "b", "2": "c"}}))
    assert one(tmp_path).settings == {
        "max_steps": 50,
        "method": "lora",
        "lora_r": 16,
        "lora_alpha": 32,
        "vocab_size": 32000,
        "num_labels": 3,
    }
    own = {"settings": {"learning_rate": 2e-4, "method": "qlora", "nested": {}, "gradient_accumulation_steps": 4}}
    (tmp_path / "curve_doctor.json").write_text(json.dumps(own))
    settings = one(tmp_path).settings
    assert (settings["method"], settings["learning_rate"], settings["gradient_accumulation_steps"]) == ("qlora", 2e-4, 4)
    assert "nested" not in settings


@pytest.mark.parametrize("broken", ["", "{", "[1]", '{"settings": 3}', "\x00\x01", "[" * 100_000])
def test_broken_files_beside_it_are_passed_over(tmp_path, broken):
    state(tmp_path / "trainer_state.json", train(10), max_steps=50)
    for name in ("adapter_config.json", "config.json", "curve_doctor.json"):
        (tmp_path / name).write_text(broken)
    assert one(tmp_path).settings == {"max_steps": 50}


def test_an_adapter_of_a_quantized_base_model_is_qlora(tmp_path):
    state(tmp_path / "checkpoint-10" / "trainer_state.json", train(10))
    adapter = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": "someone/model-bnb-4bit"}
    (tmp_path / "checkpoint-10" / "adapter_config.json").write_text(json.dumps(adapter))
    assert one(tmp_path).settings == {"method": "qlora", "lora_r": 8}


def test_a_truncated_file_gives_the_complete_rows(tmp_path):
    path = state(tmp_path / "trainer_state.json", train(10, 20, 30), max_steps=50)
    text = path.read_text()
    path.write_text(text[: text.rindex('"loss"')])
    run = one(path)
    assert [s for s, _ in points(run, "train/loss")] == [10, 20]
    assert kinds(run) == ["truncated"]
    path.write_text(text[: text.index('"loss"')])
    with pytest.raises(NotALog, match="without one complete row"):
        read(path)


def test_settings_before_the_cut_are_kept(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text('{"eval_steps": 20, "global_step": 3, "log_history": [{"loss": 1.0, "step": 1}, {"lo')
    assert one(path).settings == {"eval_steps": 20}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "the file is empty"),
        ('{"log_history": []}', "log_history is empty"),
        ('{"log_history": {"a": 1}}', "log_history is no list of rows but dict"),
        ('{"log_history": [1, 2]}', "no loss and no other metric"),
        ('{"log_history": [{"train_loss": 1.0, "train_runtime": 2.0}]}', "no loss and no other metric"),
        ('{"a": 1, "b": 2}', "found an object with a, b"),
        ("[1, 2, 3]", "found a list of 3"),
        ("3", "found a int"),
        ("{", "broken or truncated JSON"),
        ('{"log_history": ' + "[" * 100_000, "nested too deeply"),
        ('{"log_history": [{"step": ' + "9" * 5000 + "}]}", "broken or truncated JSON"),
        ("\x00\x01\x02", "a binary file"),
    ],
)
def test_what_is_no_state_says_why(tmp_path, content, why):
    path = tmp_path / "trainer_state.json"
    path.write_text(content)
    with pytest.raises(ReadError, match=why):
        read(path)


def test_a_step_beyond_64_bits_is_no_step(tmp_path):
    run = one(state(tmp_path / "s.json", [{"loss": 1.0, "step": 1}, {"loss": 2.0, "step": 10**30}]))
    assert points(run, "train/loss") == [(1, 1.0)]
    assert kinds(run) == ["no-step"]


def test_rows_that_are_no_objects_are_left_out(tmp_path):
    run = one(state(tmp_path / "s.json", [*train(10), None, "x", *train(20)]))
    assert [s for s, _ in points(run, "train/loss")] == [10, 20]
    assert kinds(run) == ["broken-lines"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_any_encoding(tmp_path, encoding):
    path = tmp_path / "trainer_state.json"
    path.write_bytes('{"name": "Müller", "log_history": [{"loss": 1.0, "step": 1}]}'.encode(encoding))
    assert points(one(path), "train/loss") == [(1, 1.0)]


def test_a_bare_list_of_rows_and_a_history_of_lists(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(train(10, 20)))
    assert [s for s, _ in points(one(path), "train/loss")] == [10, 20]
    path.write_text(json.dumps({"loss": [3.0, 2.0, 1.0], "val_loss": [3.5, 2.5, 1.5], "params": {"epochs": 3}}))
    run = one(path)
    assert points(run, "eval/loss") == [(1, 3.5), (2, 2.5), (3, 1.5)]
    assert kinds(run) == ["counted-steps"]


def test_other_names_of_metrics(tmp_path):
    rows = [{"loss": 1.0, "rewards / margins": 0.5, "rewards/chosen": 1.0, "eval_nll_loss": 3.0, "step": 1}]
    run = one(state(tmp_path / "s.json", rows))
    assert set(run.series) == {"train/loss", "train/rewards/margins", "train/rewards/chosen", "eval/nll_loss"}
