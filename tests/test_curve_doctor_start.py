"""What no curve shows, looked at before the first step: labels, padding, parameters, types, and settings that cannot work."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

for name in ("transformers", "trl", "peft", "datasets"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = pytest.mark.train

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tiny import Classifier, arguments, llama, sentences, tokenizer, trainer
from torch.utils.data import DataLoader, IterableDataset
from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq
from trl import SFTConfig, SFTTrainer

from diagnose import CurveDoctor
from diagnose.callbacks.batch_facts import batch_facts
from diagnose.callbacks.start_facts import model_facts
from diagnose.model import Finding, Severity

PAD, EOS = 0, 2


def batch_of(rows: list[dict[str, list[int]]]) -> DataLoader[Any]:
    """A dataloader whose collator pads each column of the rows to one length, as they are."""

    def collate(chosen: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        return {key: torch.tensor([row[key] for row in chosen]) for key in chosen[0]}

    return DataLoader(rows, batch_size=2, collate_fn=collate)  # type: ignore[arg-type]  # a list is a data set


def words(pad: int = PAD) -> SimpleNamespace:
    return SimpleNamespace(pad_token_id=pad, eos_token_id=EOS)


def test_examples_without_labels_are_counted() -> None:
    rows = [{"input_ids": [5, 6, 2], "labels": [-100, 6, 2]}, {"input_ids": [5, 6, 7], "labels": [-100] * 3}]
    facts = batch_facts(batch_of(rows), words())
    assert facts["examples_without_labels"] == 0.5
    assert facts["masked_labels"] == pytest.approx(4 / 6)
    assert facts["end_token_in_labels"] is True
    assert facts["pad_is_eos"] is False
    assert "attended_padding" not in facts


def test_padding_with_a_mask_of_ones() -> None:
    rows = [
        {"input_ids": [5, 6, 0, 0], "labels": [5, 6, -100, -100], "attention_mask": [1, 1, 1, 1]},
        {"input_ids": [0, 5, 6, 7], "labels": [-100, 5, 6, 7], "attention_mask": [0, 1, 1, 1]},
    ]
    assert batch_facts(batch_of(rows), words())["attended_padding"] == pytest.approx(2 / 3)


def test_no_mask_at_all_attends_to_all_padding() -> None:
    rows = [{"input_ids": [5, 6, 0, 0], "labels": [5, 6, -100, -100]}]
    assert batch_facts(batch_of(rows), words())["attended_padding"] == 1.0


def test_the_first_end_token_is_text_where_it_is_also_the_padding() -> None:
    rows = [{"input_ids": [5, 6, 2, 2], "labels": [5, 6, 2, -100], "attention_mask": [1, 1, 1, 0]}]
    assert batch_facts(batch_of(rows), words(pad=EOS))["attended_padding"] == 0.0


def test_examples_joined_to_one_row_are_told_apart() -> None:
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, -100, -100], "position_ids": [0, 1, 0, 1]}]
    assert batch_facts(batch_of(rows), words())["examples_without_labels"] == 0.5


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        raise AssertionError("a stream is not touched: what was read of it would be lost")


@pytest.mark.parametrize("dataloader", [None, DataLoader(Stream()), DataLoader([], collate_fn=list), DataLoader([{"x": 1.0}])])  # type: ignore[arg-type]  # as above
def test_data_without_labels_or_rows_tells_nothing(dataloader: Any) -> None:
    assert batch_facts(dataloader, words()) == {}


def test_random_numbers_stay_as_they_are() -> None:
    def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
        random.random(), np.random.rand(), torch.rand(3)  # noqa: NPY002 - as careless collators do
        return {"labels": torch.zeros(len(rows), 2, dtype=torch.long)}

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the state that others use
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), float(torch.rand(1))  # noqa: NPY002 - likewise
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - likewise
    torch.manual_seed(1)
    batch_facts(DataLoader([1, 2, 3], collate_fn=collate), words())  # type: ignore[arg-type]  # as above
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == expected  # noqa: NPY002 - likewise


def test_counts_and_types_of_parameters(tmp_path: Path) -> None:
    args, model = arguments(tmp_path), Classifier()
    optimizer = torch.optim.SGD(model.layers[2].parameters(), lr=0.1)
    facts = model_facts(args, model, optimizer)
    assert facts["trainable_parameters"] == 420
    assert facts["unoptimized_parameters"] == 8 * 32 + 32
    assert facts["trainable_dtype"] == "float32"
    assert facts["repacks_4bit"] is False
    assert "unoptimized_parameters" not in model_facts(args, model)
    assert model_facts(SimpleNamespace(deepspeed="ds.json"), model) == {}


def test_layers_that_repack_are_seen_and_their_cure_too(tmp_path: Path) -> None:
    model = Classifier()
    model.layers[0].support_avx512bf16_for_cpu = True  # what bitsandbytes sets on such processors
    assert model_facts(arguments(tmp_path), model)["repacks_4bit"] is True
    model.layers[0].support_avx512bf16_for_cpu = False
    assert model_facts(arguments(tmp_path), model)["repacks_4bit"] is False


def told(folder: Path, out: str) -> list[str]:
    """Names of what was said before the first step's own findings."""
    return [line.split()[2] for line in out.splitlines() if line.startswith("curve-doctor: CD8")]


def sft(folder: Path, data: Dataset, processing_class: Any, model: Any = None, **options: Any) -> SFTTrainer:
    args = SFTConfig(
        output_dir=str(folder),
        max_steps=4,
        logging_steps=1,
        per_device_train_batch_size=4,
        max_length=32,
        bf16=False,
        activation_checkpointing=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
    )
    return SFTTrainer(
        model=model or llama(len(processing_class)), args=args, train_dataset=data, processing_class=processing_class
    )


def test_a_healthy_start_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = sft(tmp_path, Dataset.from_dict({"text": sentences(40)}), tokenizer())
    made.add_callback(CurveDoctor())
    made.train()
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("curve-doctor: ")]


def masked(n: int, answers: int) -> Dataset:
    """Tokenized examples; all but `answers` of them have no label left, as where a template for the answers does not match."""
    both = tokenizer()
    ids = [both(text)["input_ids"][:16] for text in sentences(n)]
    return Dataset.from_dict(
        {"input_ids": ids, "labels": [row if i < answers else [-100] * len(row) for i, row in enumerate(ids)]}
    )


def lm_trainer(folder: Path, doctor: CurveDoctor, train: Dataset, evals: Dataset | None = None, **options: Any) -> Any:
    words = tokenizer()
    made = trainer(folder, [doctor], model=llama(len(words)), remove_unused_columns=False, **options)
    made.train_dataset, made.eval_dataset = train, evals
    made.processing_class = made.callback_handler.processing_class = words
    made.data_collator = DataCollatorForSeq2Seq(words)
    return made


@pytest.mark.parametrize(("answers", "severity"), [(0, Severity.ERROR), (8, Severity.WARNING)])
def test_answers_that_are_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str], answers: int, severity: Severity) -> None:
    seen: list[Finding] = []
    lm_trainer(tmp_path, CurveDoctor(on_finding=seen.append), masked(40, answers), max_steps=2).train()
    assert told(tmp_path, capsys.readouterr().out) == ["masked-labels"]
    assert seen[0].name == "masked-labels"
    assert seen[0].severity is severity
    assert "of the training examples looked at have no label but -100" in seen[0].message


def test_padding_that_masks_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = tokenizer()
    both.pad_token = both.eos_token
    data = Dataset.from_dict({"input_ids": [both(text + both.eos_token)["input_ids"] for text in sentences(40)]})
    made = lm_trainer(tmp_path, CurveDoctor(), data, max_steps=2)
    made.processing_class = made.callback_handler.processing_class = both
    made.data_collator = DataCollatorForLanguageModeling(both, mlm=False)
    made.train()
    assert told(tmp_path, capsys.readouterr().out) == ["masked-end-token"]


def test_an_optimizer_that_holds_other_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Classifier()
    made = trainer(tmp_path, [CurveDoctor()], model=model, max_steps=4)
    made.optimizer = torch.optim.SGD(model.layers[2].parameters(), lr=0.1)
    made.train()
    assert told(tmp_path, capsys.readouterr().out) == ["untrained-parameters"]


def test_an_adapter_in_fp16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = tokenizer()
    model = get_peft_model(llama(len(words)), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if "lora" in name:
            p.data = p.data.half()
    facts = model_facts(arguments(tmp_path), model)
    assert facts["trainable_dtype"] == "float16"


def test_an_evaluation_without_labels_is_told_at_the_first_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor = CurveDoctor(report=False)
    lm_trainer(tmp_path, doctor, masked(40, 40), masked(8, 0), max_steps=4, eval_strategy="steps", eval_steps=2).train()
    out = capsys.readouterr().out
    assert told(tmp_path, out) == ["masked-labels"]
    assert "100% of the evaluation examples" in out


def test_a_best_metric_that_no_evaluation_has_is_told_before_the_trainer_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    options = {"metric_for_best_model": "f1", "load_best_model_at_end": True, **every}
    made = trainer(tmp_path, [CurveDoctor(report=False)], max_steps=4, **options)
    with pytest.raises(KeyError, match="eval_f1"):
        made.train()
    assert "CD515 wrong-best-metric (warning): metric_for_best_model f1: no such metric" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"warmup_steps": 500}, "odd-warm-up"),
        ({"metric_for_best_model": "loss", "greater_is_better": True, "load_best_model_at_end": True}, "wrong-best-metric"),
        ({"save_strategy": "epoch"}, "eval-save-mismatch"),
        ({"save_strategy": "steps", "save_steps": 4, "save_total_limit": 1}, "unkept-best"),
    ],
)
def test_settings_that_cannot_work_are_told_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], name: str
) -> None:
    usual = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4, "max_steps": 4}
    made = trainer(tmp_path, [CurveDoctor(report=False)], **usual | {"save_total_limit": None} | options)
    made.train()
    lines = [line.split()[2] for line in capsys.readouterr().out.splitlines() if line.startswith("curve-doctor: CD5")]
    assert name in lines
