"""The trainer on CUDA (`TEST_GPU=1 python -m pytest -m gpu`), and the GPU benchmark's logic on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for name in ("torch", "transformers", "trl", "peft", "datasets", "bitsandbytes"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = [
    # the libraries' own remarks about their future, which the command silences too
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]

import torch

from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.hardware import choose_hardware
from diagnose.callbacks.qlora.train import train
from diagnose.readers import read

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

import qlora_gpu

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.train
def test_the_benchmark_measures_all_variants_of_a_case(capsys: pytest.CaptureFixture[str]) -> None:
    hardware = choose_hardware(TrainConfig(method="qlora", device="cpu", report_to="none"))
    model = qlora_gpu.random_4_bit(qlora_gpu.llama_config("tiny"), hardware)
    packed = [m for m in model.modules() if type(m).__name__ == "Linear4bit"]
    assert len(packed) == 14
    assert all(layer.weight.dtype == torch.uint8 and layer.weight.quant_state.nested for layer in packed)
    found = [m for case in qlora_gpu.CASES["cpu"] for m in qlora_gpu.measure(model, *case, "cpu")]
    assert [m.variant for m in found] == [*qlora_gpu.VARIANTS] * 2
    assert all(m.tokens_per_s > 0 and m.planned > 0 and m.peak == 0 for m in found)
    assert not any("lora" in name for name, _ in model.named_parameters())
    qlora_gpu.report(found, qlora_gpu.Console(width=120))
    assert "ours / TRL" in capsys.readouterr().out


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("method", ["qlora", "lora", "full"])
def test_a_run_on_the_gpu(method: str, tiny_base: Path, tmp_path: Path) -> None:
    config = TrainConfig(
        model=str(tiny_base / "base"),
        data=str(tiny_base / "examples.jsonl"),
        method=method,  # type: ignore[arg-type]  # the names are those of Method
        output_dir=str(tmp_path / "run"),
        learning_rate=5e-3 if method != "full" else 1e-3,
        max_steps=40,
    )
    result = train(config)
    assert result.best is not None
    (run,) = read(tmp_path / "run")
    assert run.settings["bf16"] is torch.cuda.is_bf16_supported(including_emulation=False)
    assert run.settings["optim"] == "paged_adamw_8bit"
    losses = run.series["eval/loss"].value
    assert losses[-1] < losses[0]


@gpu
@pytest.mark.gpu
def test_the_plan_is_near_what_is_measured() -> None:
    hardware = choose_hardware(TrainConfig(method="qlora", report_to="none"))
    model = qlora_gpu.random_4_bit(qlora_gpu.llama_config("1B"), hardware)
    found = qlora_gpu.measure(model, "1B", 4, 1024, False, "cuda")
    assert found[-1].planned == pytest.approx(found[-1].peak, rel=0.15)
