"""The settings of a training: defaults, files, flags, folder names. No torch needed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import write_demo_examples

from diagnose.callbacks.qlora.config import TrainConfig, dump_yaml, load_yaml, with_values
from diagnose.callbacks.qlora.folder import free_folder, last_checkpoint, open_folder, run_name
from diagnose.callbacks.qlora.train_cli import parser
from diagnose.cli import _Parser, main
from diagnose.errors import ConfigError, TrainingInputError
from diagnose.prescribe import RANGES
from diagnose.settings_changed import from_names


def test_defaults_are_those_of_the_courses() -> None:
    config = TrainConfig()
    expected = {
        "method": "qlora",
        "rate": 2e-4,
        "num_train_epochs": 3,
        "total_train_batch_size": 16,
        "warmup_ratio": 0.05,
        "lr_scheduler_type": "cosine",
        "max_grad_norm": 1.0,
        "weight_decay": 0.01,
        "save_total_limit": 3,
        "seed": 42,
        "lora_r": 16,
        "alpha": 32,
        "lora_target": "all-linear",
        "quant_type": "nf4",
        "double_quant": True,
        "preflight": 50,
        "retries": 2,
    }
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize("method", ["qlora", "lora", "full"])
def test_the_start_rate_is_inside_the_range_of_its_method(method: str) -> None:
    low, high = RANGES[method]
    assert low <= with_values(TrainConfig(), {"method": method}, "test").rate <= high


@pytest.mark.parametrize(("rank", "rate"), [(8, 2e-4), (32, 2e-4), (64, 1e-4), (128, 5e-5), (256, 2.5e-5)])
def test_the_rate_follows_the_rank(rank: int, rate: float) -> None:
    assert TrainConfig(lora_r=rank).rate == pytest.approx(rate)
    assert TrainConfig(lora_r=rank).alpha == 2 * rank


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"lerning_rate": 1e-4}, "did you mean learning_rate"),
        ({"learning_rate": 0}, "must be above 0 and at most 10, got 0"),
        ({"learning_rate": "fast"}, "must be a number"),
        ({"learning_rate": True}, "must be a number"),
        ({"learning_rate": float("nan")}, "must be a number"),
        ({"lora_r": 1.5}, "must be a whole number"),
        ({"lora_r": float("inf")}, "must be a whole number"),
        ({"lora_r": None}, "must be a whole number"),
        ({"method": "dora"}, "must be one of"),
        ({"packing": "yes"}, "must be true or false"),
        ({"model": 3}, "must be text"),
        ({"earlier": "runs/a"}, "must be a list"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_was_expected(values: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_values(TrainConfig(), values, "run.yaml")


def test_an_unknown_setting_lists_what_exists() -> None:
    with pytest.raises(ConfigError) as raised:
        with_values(TrainConfig(), {"x": 1}, "run.yaml")
    assert all(item.name in str(raised.value) for item in dataclasses.fields(TrainConfig))


def test_yaml_round_trip_and_numbers_that_yaml_takes_for_text(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="needs the train extra")
    file = tmp_path / "run.yaml"
    file.write_text("model: a\nlearning-rate: 1e-4\nnum_train_epochs: 2\npacking: true\nearlier: [runs/a]\n")
    config = with_values(TrainConfig(), load_yaml(file), "run.yaml")
    assert (config.learning_rate, config.num_train_epochs, config.packing, config.earlier) == (1e-4, 2, True, ("runs/a",))
    file.write_text(dump_yaml(config))
    assert with_values(TrainConfig(), load_yaml(file), "run.yaml") == config
    assert "seed" not in file.read_text()  # at its default


@pytest.mark.parametrize("text", ["- a\n", "a: [\n", ""])
def test_a_file_that_holds_no_settings_is_refused(text: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="needs the train extra")
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        load_yaml(tmp_path / "run.yaml")


def test_every_setting_has_a_flag_but_what_a_retry_sets() -> None:
    flags = {option for action in parser(_Parser)._actions for option in action.option_strings}
    for item in dataclasses.fields(TrainConfig):
        assert (f"--{item.name.replace('_', '-')}" in flags) == (item.name != "earlier")
        assert item.metadata["help"]


def test_a_folder_is_named_by_what_was_changed() -> None:
    config = TrainConfig(method="lora", learning_rate=6.7e-5, lora_r=64, num_train_epochs=2, total_train_batch_size=32)
    assert run_name(config) == "lora-r64-lr6.7e-5-ep2-batch32"
    told = from_names([run_name(config)])
    assert told == {"method": "lora", "lora_r": 64, "learning_rate": 6.7e-5, "num_train_epochs": 2, "batch_size": 32}


def test_a_folder_that_is_taken_is_refused_or_replaced(tmp_path: Path) -> None:
    run, theirs = tmp_path / "run", tmp_path / "theirs"
    open_folder(run, resume=False, overwrite=False)
    (run / "run.yaml").write_text("model: a\n")
    open_folder(run, resume=False, overwrite=False)  # a start that failed leaves nothing to lose
    (run / "run.yaml").write_text("model: a\n")
    (run / "checkpoint-8").mkdir()
    (run / "mine.txt").write_text("kept")
    with pytest.raises(TrainingInputError, match="--resume, replace it with --overwrite"):
        open_folder(run, resume=False, overwrite=False)
    open_folder(run, resume=True, overwrite=False)
    assert (run / "checkpoint-8").is_dir()
    open_folder(run, resume=False, overwrite=True)
    assert sorted(path.name for path in run.iterdir()) == ["mine.txt"]

    theirs.mkdir()
    (theirs / "photo.jpg").write_text("kept")
    for overwrite in (False, True):
        with pytest.raises(TrainingInputError, match="no run of"):
            open_folder(theirs, resume=False, overwrite=overwrite)
    assert (theirs / "photo.jpg").read_text() == "kept"


def test_a_new_try_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    config = TrainConfig(output_dir=str(tmp_path / "first"), learning_rate=1e-4)
    assert free_folder(config) == tmp_path / "qlora-r16-lr1e-4"
    free_folder(config).mkdir()
    assert free_folder(config) == tmp_path / "qlora-r16-lr1e-4-try2"


def test_a_checkpoint_cut_off_while_it_was_written_is_passed_over(tmp_path: Path) -> None:
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    whole = len(header).to_bytes(8, "little") + header + b"\0" * 4
    for step, weights in ((9, whole), (10, whole[:-2]), (11, b"")):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(weights)
    (tmp_path / "checkpoint-12").mkdir()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-9"
    assert last_checkpoint(tmp_path / "checkpoint-9") is None


def test_help_comes_without_the_training_libraries() -> None:
    code = (
        "import sys\nfrom diagnose.cli import main\n"
        "for argv in (['--help'], ['train', '--help']):\n"
        "    try: main(argv)\n    except SystemExit: pass\n"
        "print('LOADED', sorted({'torch', 'transformers', 'trl', 'peft', 'datasets', 'pandas', 'scipy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
    assert "--learning-rate" in done.stdout


def test_without_the_extra_it_says_what_to_install(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from diagnose.callbacks.qlora import train_cli

    monkeypatch.setattr(train_cli, "find_spec", lambda name: None if name == "trl" else object())
    assert main(["train", "--demo"]) == 2
    assert capsys.readouterr().err == "diagnose: training needs trl: pip install 'curve-doctor[train]'\n"


def test_the_demo_data_are_what_their_script_writes() -> None:
    files = write_demo_examples.files()
    assert sum(map(len, files.values())) < 100_000
    for name, text in files.items():
        assert (write_demo_examples.FOLDER / name).read_text(encoding="utf-8") == text
