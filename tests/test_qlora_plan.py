"""The memory plan: the courses' arithmetic, the formula against recorded counts, the choice of batch, and `diagnose plan`.

Needs no train extra.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_memory import COUNTS, SHAPES

from diagnose.callbacks.qlora.memory import ALLOWANCE, METHODS, Method, course_bytes, predict
from diagnose.callbacks.qlora.out_of_memory import BatchSettings, next_settings
from diagnose.callbacks.qlora.plan import HEADROOM, Plan, parse_bytes, plan_memory
from diagnose.callbacks.qlora.shape import read_config, shape_of
from diagnose.cli import main
from diagnose.errors import ConfigError, TrainingInputError

RECORDED = json.loads(COUNTS.read_text())
LLAMA = SHAPES["Llama 2 7B"]
GB24 = parse_bytes("24GB")


def test_the_courses_example_comes_out() -> None:
    total = {method: sum(course_bytes(7e9, 40e6, method).values()) / 1e9 for method in METHODS}
    assert {method: round(gb, 1) for method, gb in total.items()} == {"full": 84.0, "lora": 14.4, "qlora": 3.9}
    assert course_bytes(7e9, 40e6, "full") == {"weights": 14e9, "gradients": 14e9, "optimizer": 56e9}


@pytest.mark.parametrize("entry", RECORDED["counts"], ids=lambda e: f"{e['model']}-{e['method']}-{e['batch']}x{e['length']}")
def test_the_formula_agrees_with_the_counted_step(entry: dict[str, Any]) -> None:
    shape = shape_of(SHAPES[entry["model"]], entry["model"])
    parts = predict(
        shape,
        method=entry["method"],
        batch=entry["batch"],
        length=entry["length"],
        checkpointing=entry["checkpointing"],
        accumulated=entry["accumulated"],
    )
    assert parts.total == pytest.approx(entry["peak"], rel=0.05)
    assert parts.weights + parts.adapters + parts.optimizer == pytest.approx(entry["before"], rel=0.05)


def test_the_counts_are_of_the_shapes_and_settings_that_the_script_has() -> None:
    from record_memory import SETTINGS

    assert RECORDED["models"] == SHAPES
    assert len(RECORDED["counts"]) == len(SHAPES) * len(SETTINGS)
    errors = []
    for entry in RECORDED["counts"]:
        setting = {key: entry[key] for key in ("method", "batch", "length", "checkpointing", "accumulated")}
        errors.append(abs(predict(shape_of(SHAPES[entry["model"]]), **setting).total / entry["peak"] - 1))
    assert sum(errors) / len(errors) < 0.01


@pytest.mark.parametrize("name", ["TinyLlama 1.1B", "Llama 2 7B", "Llama 3.1 8B", "Mistral 7B", "Llama 2 13B"])
def test_adapters_and_weights_are_counted_exactly(name: str) -> None:
    shape = shape_of(SHAPES[name], name)
    trained = {entry["method"]: entry["n_trained"] for entry in RECORDED["counts"] if entry["model"] == name}
    assert trained == {"qlora": shape.n_lora(16), "lora": shape.n_lora(16), "full": shape.n_params}


def plan(**changed: Any) -> Plan:
    usual: dict[str, Any] = {"method": "qlora", "max_length": 2048, "gpu_bytes": GB24, "name": "Llama 2 7B"}
    return plan_memory(LLAMA, **usual | changed)


def test_what_is_planned_fits_and_the_next_larger_does_not() -> None:
    for gb in (8, 12, 16, 24, 40, 80):
        made = plan(gpu_bytes=gb * 1024**3)
        assert made.fits == (made.peak * HEADROOM + ALLOWANCE <= gb * 1024**3)
        assert made.effective_batch == 16
        assert made.per_device_batch & (made.per_device_batch - 1) == 0
        if made.fits and made.per_device_batch < 16:
            larger = plan(gpu_bytes=gb * 1024**3, batch=2 * made.per_device_batch, checkpointing=made.checkpointing)
            assert not larger.fits


def test_the_batch_shrinks_before_layers_are_checkpointed() -> None:
    made = [plan(gpu_bytes=gb * 1024**3, max_length=1024) for gb in (160, 80, 40, 24, 16, 10, 8)]
    found = [(each.checkpointing, each.per_device_batch) for each in made]
    without = [batch for is_checkpointed, batch in found if not is_checkpointed]
    assert found == sorted(found, key=lambda pair: (pair[0], -pair[1]))
    assert without == sorted(without, reverse=True)
    assert without[0] > without[-1] == 1 or made[-1].checkpointing
    assert made[-1].checkpointing


def test_what_does_not_fit_says_what_would() -> None:
    made = plan(method="full")
    assert not made.fits
    assert (made.per_device_batch, made.accumulation, made.checkpointing) == (1, 16, True)
    assert any("does not fit" in note and "--method lora" in note for note in made.notes)
    long = plan(max_length=32768, gpu_bytes=parse_bytes("10GB"))
    assert not long.fits
    assert any("--max-length 4096" in note for note in long.notes)
    tiny = plan(gpu_bytes=parse_bytes("2GB"))
    assert any("a smaller model or a larger GPU" in note for note in tiny.notes)
    fixed = plan(batch=16, checkpointing=False)
    assert not fixed.fits
    assert any("try a smaller batch with checkpointing" in note for note in fixed.notes)


def test_an_unknown_gpu_gets_the_usual_batch_and_says_so() -> None:
    made = plan(gpu_bytes=None)
    assert (made.per_device_batch, made.accumulation, made.fits) == (4, 4, True)
    assert any("not checked" in note for note in made.notes)


def test_devices_share_the_effective_batch() -> None:
    made = plan(devices=4, gpu_bytes=parse_bytes("80GB"))
    assert made.per_device_batch * made.accumulation == 4
    odd = plan(devices=3, gpu_bytes=parse_bytes("80GB"))
    assert odd.effective_batch >= 16
    assert any(f"x {odd.accumulation} x 3), not 16" in note for note in odd.notes)
    one, two = (plan(devices=n, batch=2, checkpointing=False) for n in (1, 2))
    assert two.parts.gradients == 2 * one.parts.gradients  # DDP's buckets
    assert plan(effective_batch=64, gpu_bytes=parse_bytes("800GB")).per_device_batch == 64


@pytest.mark.parametrize(
    ("changed", "grows"),
    [
        ({"max_length": 4096}, True),
        ({"batch": 2}, True),
        ({"lora_r": 64}, True),
        ({"lora_dropout": 0.05}, True),
        ({"checkpointing": True}, False),
    ],
)
def test_memory_moves_the_way_it_should(changed: dict[str, Any], grows: bool) -> None:
    usual: dict[str, Any] = {"batch": 1, "checkpointing": False}
    before, after = plan(**usual), plan(**usual | changed)
    assert (after.peak > before.peak) == grows


@pytest.mark.parametrize(
    "changed",
    [{"max_length": 0}, {"effective_batch": 0}, {"lora_r": -1}, {"devices": 0}, {"batch": 0}],
    ids=lambda c: next(iter(c)),
)
def test_numbers_that_make_no_sense_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changed))} is .*; expected 1 or more"):
        plan(**changed)


@pytest.mark.parametrize("text", ["", "much", "-3GB", "0GB", "24TB", "1e3"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no memory size; expected something like 24GB"):
        parse_bytes(text)
    assert parse_bytes("0.5 GiB") == parse_bytes("512MB") == 2**29


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "has no hidden_size or n_embd"),
        ({**LLAMA, "hidden_size": "wide"}, "has no hidden_size"),
        ({**LLAMA, "num_local_experts": 8}, "mixture of experts"),
        ({**LLAMA, "kv_lora_rank": 512}, "latent attention"),
        ({**LLAMA, "layer_types": ["linear_attention", "full_attention"]}, "layers of the kind linear_attention"),
        ({**LLAMA, "is_encoder_decoder": True}, "only decoder models"),
    ],
)
def test_models_that_are_not_planned_for_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingInputError, match=message):
        shape_of(config, "odd")


def test_the_language_part_of_a_larger_model_is_counted_and_told() -> None:
    shape = shape_of({"model_type": "llava", "text_config": LLAMA}, "llava")
    assert replace(shape, notes=(), name="") == replace(shape_of(LLAMA), name="")
    assert plan_memory({"text_config": LLAMA}, max_length=512, gpu_bytes=None).notes[0].startswith("only the language part")


def test_a_configuration_is_found_in_a_folder_a_file_and_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    assert read_config(str(tmp_path)) == read_config(str(file)) == LLAMA
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(TrainingInputError, match="not in the hub's local cache"):
        read_config("some/model")
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    assert read_config("some/model") == LLAMA
    for broken in ("{", "[]"):
        file.write_text(broken)
        with pytest.raises(TrainingInputError, match=r"is not a model's config\.json"):
            read_config(str(file))


def test_the_table_has_the_three_methods_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert main(["plan", "--model", str(tmp_path), "--gpu", "24GB"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    heads = next(line for line in out.splitlines() if "QLoRA" in line)
    assert heads.index("full") < heads.index("LoRA") < heads.index("QLoRA")
    for row in (
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "head and loss",
        "total",
        "fits 24 GiB",
        "as courses count",
    ):
        assert row in out
    assert "80.9" in out  # 12 bytes for each of 6.74e9 parameters


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--gpu", "24GB"], "the following arguments are required: --model"),
        (["--model", "none/such"], "give a folder with config.json, or download it first: hf download none/such"),
        (["--model", "MODEL", "--gpu", "lots"], "'lots' is no memory size"),
        (["--model", "MODEL", "--batch", "0"], "batch is 0; expected 1 or more"),
        (["--model", "MODEL", "--method", "qlra"], "invalid choice: 'qlra'"),
    ],
)
def test_bad_input_is_told_in_a_line(argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert main(["plan", *(str(tmp_path) if each == "MODEL" else each for each in argv)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


def test_the_plan_imports_no_torch_and_the_check_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'peft', 'datasets'): sys.modules[name] = None\n"
        "from diagnose.cli import main\n"
        f"sys.exit(main(['plan', '--model', {str(tmp_path)!r}, '--gpu', '24GB', *sys.argv[1:]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([sys.executable, "-c", code, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'curve-doctor[train]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 6, 7, 16])
def test_out_of_memory_keeps_the_effective_batch_until_nothing_is_left(batch: int) -> None:
    current: BatchSettings | None = BatchSettings(batch, 5, checkpointing=False)
    seen = []
    while current is not None:
        seen.append(current)
        current = next_settings(current)
    assert {each.per_device_batch * each.accumulation for each in seen} == {5 * batch}
    assert [each.per_device_batch for each in seen] == sorted((each.per_device_batch for each in seen), reverse=True)
    assert [each.checkpointing for each in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1] == BatchSettings(1, 5 * batch, checkpointing=True)


def test_methods_are_ordered_by_what_they_need() -> None:
    made: dict[Method, Plan] = {method: plan(method=method, batch=1, checkpointing=True) for method in METHODS}
    assert made["qlora"].peak < made["lora"].peak < made["full"].peak
    assert [each.method for each in made["lora"].beside] == ["qlora", "full"]
    assert made["lora"].beside[0].parts == made["qlora"].parts
