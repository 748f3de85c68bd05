"""Several processes: DDP over gloo on the CPU, and the recipe for FSDP, of which only the configuration can be tested here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

for name in ("torch", "transformers", "trl", "peft", "datasets", "bitsandbytes"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = pytest.mark.train

import torch

from diagnose import examine, read
from diagnose.callbacks.qlora import model
from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.hardware import choose_hardware

REPO = Path(__file__).parent.parent
RECIPE = REPO / "docs" / "fsdp-qlora.yaml"


def test_two_processes_train_treat_and_write_once(tiny_base: Path, tmp_path: Path) -> None:
    run = tmp_path / "lora-r16-lr0.3"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command += ["-m", "diagnose", "train"]
    command += ["--model", str(tiny_base / "base"), "--data", str(tiny_base / "examples.jsonl"), "--method", "lora"]
    command += ["--lr", "0.3", "--max-steps", "48", "--per-device-train-batch-size", "8", "--output-dir", str(run)]
    command += ["--device", "cpu", "--retries", "1"]
    done = subprocess.run(
        command, cwd=REPO, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert done.stdout.count(f"== {run}") == 1  # the first process alone speaks
    assert "batch 8 x accumulation 1" in done.stdout
    assert "changed: learning_rate 0.3 to 0.033 (divided by 9); nothing else" in done.stdout
    assert len(re.findall(r"^step ", done.stdout, re.MULTILINE)) == len(set(re.findall(r"^step .*", done.stdout, re.MULTILINE)))
    second = tmp_path / "lora-r16-lr0.033-steps48"
    assert {path.name for path in tmp_path.iterdir()} == {run.name, second.name}
    for folder in (run, second):
        (found,) = read(folder)
        assert found.settings["world_size"] == 2
        assert found.settings["total_train_batch_size"] == 16
        live = json.loads((folder / "curve_doctor.json").read_text())["runs"][0]
        assert examine(found).verdict.value == live["verdict"]


def fsdp(monkeypatch: pytest.MonkeyPatch) -> tuple[TrainConfig, Any]:
    """A config and hardware as under `accelerate launch` with FSDP on a GPU."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    config = TrainConfig(precision="bf16", device="cpu", report_to="none")
    return config, replace(choose_hardware(config), device="cuda")


def test_fsdp_stores_4_bit_weights_in_the_type_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    config, hardware = fsdp(monkeypatch)
    assert hardware.is_fsdp
    quantization = model.quantization(config, hardware)
    assert quantization.bnb_4bit_quant_storage == quantization.bnb_4bit_compute_dtype == torch.bfloat16 == hardware.dtype
    assert model.quantization(config, replace(hardware, is_fsdp=False)).bnb_4bit_quant_storage == torch.uint8


def test_fsdp_places_the_weights_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    config, hardware = fsdp(monkeypatch)
    asked: list[dict[str, Any]] = []

    class Stop(Exception):
        pass

    def load(*args: Any, **options: Any) -> None:
        asked.append(options)
        raise Stop

    monkeypatch.setattr(model.AutoModelForCausalLM, "from_pretrained", load)
    for is_fsdp in (True, False):
        with pytest.raises(Stop):
            model.load_model(config, replace(hardware, is_fsdp=is_fsdp), object())
    assert ["device_map" in options for options in asked] == [False, True]
    assert asked[1]["device_map"] == {"": 0}


def test_the_recipe_is_a_configuration_that_accelerate_takes() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    read_back = load_config_from_file(str(RECIPE))
    assert read_back.distributed_type == "FSDP"
    assert read_back.mixed_precision == "bf16"
    assert read_back.fsdp_config["fsdp_use_orig_params"] is False
    assert read_back.fsdp_config["fsdp_state_dict_type"] == "FULL_STATE_DICT"


def test_the_recipe_reaches_the_trainer_as_fsdp(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `accelerate launch` hands to its processes is what `choose_hardware` looks at."""
    from accelerate.commands.launch import _validate_launch_command as validate
    from accelerate.commands.launch import launch_command_parser, prepare_multi_gpu_env

    args, *_ = validate(launch_command_parser().parse_args(["--config_file", str(RECIPE), "train.py"]))
    environment = prepare_multi_gpu_env(args)
    assert environment["ACCELERATE_USE_FSDP"].lower() == "true"
    assert environment["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"
    assert environment["FSDP_CPU_RAM_EFFICIENT_LOADING"].lower() == "true"
