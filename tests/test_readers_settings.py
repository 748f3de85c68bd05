"""Settings from the files beside a log: training_args.bin, which may be hostile, and a model card."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from diagnose.model import Run
from diagnose.readers import read, training_args
from diagnose.readers.model_card import from_card

CARD = """---
library_name: peft
---
# my-model

## Training procedure

### Training hyperparameters

The following hyperparameters were used during training:
- learning_rate: 0.0002
- train_batch_size: 4
- eval_batch_size: 8
- seed: 42
- gradient_accumulation_steps: 4
- total_train_batch_size: 16
- optimizer: Use OptimizerNames.PAGED_ADAMW_8BIT with betas=(0.9,0.999) and epsilon=1e-08
- lr_scheduler_type: cosine
- lr_scheduler_warmup_ratio: 0.03
- num_epochs: 3.0
- mixed_precision_training: Native AMP

### Training results

- learning_rate: 1
"""


def run_in(folder: Path, **state: Any) -> Run:
    rows = [{"step": 10 * i, "loss": 2.0 - 0.1 * i, "epoch": i / 10} for i in range(1, 12)]
    (folder / "trainer_state.json").write_text(json.dumps({**state, "log_history": rows}))
    (run,) = read(folder)
    return run


def archive(path: Path, content: bytes, name: str = "training_args/data.pkl", method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr(name, content)


class Harm:
    def __init__(self, call: Any, *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> tuple[Any, Any]:
        return self.call, self.args


class Arguments:
    pass


def made(**fields: Any) -> bytes:
    instance = Arguments()
    instance.__dict__.update(fields)
    return pickle.dumps(instance, protocol=2)


def test_nothing_that_a_pickle_names_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "harmed"
    harms = [Harm(os.system, f"touch {mark}"), Harm(Path.touch, mark), Harm(exec, f"open({str(mark)!r}, 'w')")]
    archive(tmp_path / "training_args.bin", made(learning_rate=2e-4, harm=harms, max_steps=Harm(eval, "1/0")))
    run = run_in(tmp_path)
    assert not mark.exists()
    assert run.settings["learning_rate"] == 2e-4
    assert "max_steps" not in run.settings
    # That the same bytes do harm elsewhere shows that the test means something.
    pickle.loads(pickle.dumps(Harm(Path.touch, mark)))
    assert mark.exists()


def test_a_call_in_place_of_the_arguments_is_a_note(tmp_path: Path) -> None:
    archive(tmp_path / "training_args.bin", pickle.dumps(Harm(os._exit, 3)))
    (note,) = run_in(tmp_path).notes
    assert note.kind == "unread-settings"
    assert "training_args.bin" in note.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 no archive",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64,
        b"\x80\x02.",
        b"x" * (2 << 20),
    ],
    ids=["empty", "cut off", "pointer", "old format", "large"],
)
def test_what_cannot_be_read_is_a_note_and_the_run_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "training_args.bin").write_bytes(content)
    run = run_in(tmp_path, max_steps=110)
    assert [note.kind for note in run.notes] == ["unread-settings"]
    assert run.settings["max_steps"] == 110


def test_broken_pickles_raise_nothing(tmp_path: Path) -> None:
    whole = made(learning_rate=2e-4, names=["a", ("b", {"c": 1.5})], harm=Harm(os.getcwd))
    for k in range(len(whole)):
        for content in (whole[:k], whole[:k] + bytes([whole[k] ^ 0x41]) + whole[k + 1 :]):
            archive(tmp_path / "training_args.bin", content)
            run = run_in(tmp_path)
            assert len(run.series["train/loss"]) == 11


def test_memory_is_not_reserved_because_a_file_asks_for_it(tmp_path: Path) -> None:
    # `r` puts into the memo at an index: the unpickler in C makes room for four billion entries.
    archive(tmp_path / "training_args.bin", b"\x80\x02Nr\xf0\xff\xff\xff.")
    assert [note.kind for note in run_in(tmp_path).notes] == ["unread-settings"]
    bomb = b"\x80\x02" + b"N" * (64 << 20)
    archive(tmp_path / "training_args.bin", bomb, method=zipfile.ZIP_DEFLATED)
    assert [note.kind for note in run_in(tmp_path).notes] == ["unread-settings"]


def test_a_card_tells_by_its_own_names(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD)
    found = run_in(tmp_path, train_batch_size=4).settings
    assert found == {
        "train_batch_size": 4,
        "learning_rate": 2e-4,
        "seed": 42,
        "gradient_accumulation_steps": 4,
        "total_train_batch_size": 16,
        "optim": "paged_adamw_8bit",
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.03,
        "num_train_epochs": 3.0,
        "fp16": True,
    }


def test_a_readme_that_is_no_card_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# notes\n- learning_rate: 3\n")
    assert run_in(tmp_path).settings == {}


def test_a_card_without_a_total_means_one_device() -> None:
    head = "The following hyperparameters were used during training:\n- train_batch_size: 2\n"
    assert from_card(head)["total_train_batch_size"] == 2
    assert "total_train_batch_size" not in from_card(head + "- num_devices: 4\n")


def test_arguments_count_more_than_the_card(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD)
    archive(tmp_path / "training_args.bin", made(learning_rate=1e-5, max_grad_norm=None, save_steps=0.1, max_steps=-1))
    found = run_in(tmp_path, max_steps=110, save_steps=11).settings
    assert (found["learning_rate"], found["max_grad_norm"], found["save_steps"], found["max_steps"]) == (1e-5, 0, 11, 110)


@pytest.mark.train
def test_a_file_that_torch_wrote(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the train extra")
    pytest.importorskip("transformers", reason="needs the train extra")
    from tiny import arguments

    args = arguments(tmp_path, eval_strategy="steps", eval_steps=5, lr_scheduler_type="cosine", gradient_accumulation_steps=2)
    torch.save(args, tmp_path / "training_args.bin")
    fields = training_args.read(tmp_path / "training_args.bin")
    plain = {k: v for k, v in args.to_dict().items() if isinstance(v, str | int | float) and fields.get(k) is not None}
    assert {k: fields[k] for k in plain} == plain
    found = run_in(tmp_path).settings
    assert (found["max_steps"], found["lr_scheduler_type"], found["optim"]) == (24, "cosine", "adamw_torch_fused")
    assert (found["eval_steps"], found["total_train_batch_size"], found["world_size"]) == (5, 16, 1)
    assert "num_train_epochs" not in found
