"""What CurveDoctor reads of a training's settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the train extra")
pytestmark = pytest.mark.train

from tiny import Classifier, arguments, llama, trainer
from torch import nn
from transformers import BitsAndBytesConfig, LlamaForCausalLM, LlamaForSequenceClassification, TrainerState

from diagnose import CurveDoctor
from diagnose.callbacks.settings import read_settings


def settings(folder: Path, model: Any = None, *, planned: int = 100, **changed: Any) -> dict[str, Any]:
    args = arguments(folder, **changed)
    state = TrainerState(max_steps=planned, num_train_epochs=7)
    state.compute_steps(args, planned)
    return dict(read_settings(args, state, model))


def test_all_are_plain_json_by_the_trainers_names(tmp_path: Path) -> None:
    found = settings(tmp_path, llama(64))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all(value is None or isinstance(value, str | int | float) for value in found.values())
    assert found["lr_scheduler_type"] == "linear"
    assert found["optim"].startswith("adamw")
    assert found["eval_strategy"] == "no"
    assert found["seed"] == 42


def test_ratios_become_steps(tmp_path: Path) -> None:
    found = settings(tmp_path, logging_steps=0.05, eval_strategy="steps", eval_steps=0.1)
    assert (found["logging_steps"], found["eval_steps"]) == (5, 10)


def test_steps_that_are_not_in_force_are_left_out(tmp_path: Path) -> None:
    found = settings(tmp_path, logging_strategy="epoch")
    assert not {"logging_steps", "eval_steps", "save_steps"} & set(found)


def test_max_steps_rule_the_epochs(tmp_path: Path) -> None:
    assert settings(tmp_path, max_steps=100, num_train_epochs=3)["num_train_epochs"] == 7
    assert settings(tmp_path, max_steps=-1, num_train_epochs=2.5)["num_train_epochs"] == 2.5


def test_endless_data_has_no_epochs(tmp_path: Path) -> None:
    state = TrainerState(max_steps=10, num_train_epochs=sys.maxsize)
    assert "num_train_epochs" not in read_settings(arguments(tmp_path, max_steps=10), state)


def test_a_model_from_a_configuration_has_no_usual_rates(tmp_path: Path) -> None:
    assert "method" not in settings(tmp_path, llama(64))
    assert "method" not in settings(tmp_path, Classifier())
    assert "method" not in settings(tmp_path, None)


def test_a_loaded_model_is_fully_trained_unless_parts_are_frozen(tmp_path: Path) -> None:
    model = llama(64)
    model.config.name_or_path = "some/base"
    assert settings(tmp_path, model)["method"] == "full"
    assert settings(tmp_path, nn.DataParallel(model))["method"] == "full"
    next(model.parameters()).requires_grad = False
    assert "method" not in settings(tmp_path, model)


def with_lora(model: Any) -> Any:
    peft = pytest.importorskip("peft", reason="needs the train extra")
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


def test_lora_tells_its_rank(tmp_path: Path) -> None:
    found = settings(tmp_path, with_lora(llama(64)))
    assert (found["method"], found["lora_r"], found["lora_alpha"], found["vocab_size"]) == ("lora", 8, 16, 64)


def test_a_base_loaded_in_four_bits_makes_it_qlora(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the train extra")
    llama(64).save_pretrained(tmp_path / "base")
    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    base = LlamaForCausalLM.from_pretrained(tmp_path / "base", quantization_config=quantization, device_map={"": "cpu"})
    found = settings(tmp_path, with_lora(base))
    assert (found["method"], found["lora_r"], found["lora_alpha"], found["vocab_size"]) == ("qlora", 8, 16, 64)


@pytest.mark.parametrize("quantization", [{"load_in_4bit": True}, SimpleNamespace(load_in_4bit=True)])
def test_the_configuration_tells_of_four_bits_too(tmp_path: Path, quantization: Any) -> None:
    adapter = SimpleNamespace(peft_type="LORA", r=4, lora_alpha=8)
    model = SimpleNamespace(peft_config={"default": adapter}, config=SimpleNamespace(quantization_config=quantization))
    assert settings(tmp_path, model)["method"] == "qlora"


def test_another_adapter_keeps_its_own_name(tmp_path: Path) -> None:
    model = SimpleNamespace(peft_config={"default": SimpleNamespace(peft_type="P_TUNING")}, config=SimpleNamespace())
    found = settings(tmp_path, model)
    assert found["method"] == "p_tuning"
    assert "lora_r" not in found


def test_a_classifier_chooses_between_labels_and_a_language_model_between_tokens(tmp_path: Path) -> None:
    config = llama(64).config
    config.num_labels = 5
    found = settings(tmp_path, LlamaForSequenceClassification(config))
    assert (found["num_labels"], "vocab_size" in found) == (5, False)
    found = settings(tmp_path, llama(64))
    assert ("num_labels" in found, found["vocab_size"]) == (False, 64)


def test_arguments_that_know_nothing_are_no_trouble() -> None:
    assert read_settings(SimpleNamespace(), SimpleNamespace(), SimpleNamespace(config=SimpleNamespace())) == {}


def test_what_an_update_averages_over_counts_accumulation(tmp_path: Path) -> None:
    found = settings(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=3)
    assert found["total_train_batch_size"] == 12


def test_no_limit_is_told_as_zero(tmp_path: Path) -> None:
    assert settings(tmp_path)["save_total_limit"] == 0
    assert settings(tmp_path, save_total_limit=3)["save_total_limit"] == 3


def test_the_way_of_the_best_metric_is_told(tmp_path: Path) -> None:
    best = {
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "eval_steps": 10,
        "save_strategy": "steps",
        "save_steps": 10,
    }
    found = settings(tmp_path, metric_for_best_model="wer", **best)
    assert (found["metric_for_best_model"], found["greater_is_better"]) == ("wer", True)


def test_the_rules_about_settings_judge_a_live_run(tmp_path: Path) -> None:
    doctor = CurveDoctor(report=False)
    changed = {"max_grad_norm": 0.0, "weight_decay": 0.5, "warmup_steps": 0, "max_steps": 40, "gradient_accumulation_steps": 2}
    trainer(tmp_path, [doctor], **changed).train()
    assert doctor.examination is not None
    report = doctor.examination.report()
    told = {f.name: f for f in report.findings if f.metric == "settings"}
    assert {"loose-clipping", "strong-weight-decay", "odd-warm-up"} <= set(told)
    assert "odd-effective-batch" not in told
    assert "many-epochs" in told
    assert all(f.severity.value == "info" for f in told.values())
    assert report.verdict.value == "HEALTHY"
    assert report.prescription is None
