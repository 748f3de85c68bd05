"""Bad input to `diagnose train`: one line with the cure and exit code 2, never a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

for name in ("torch", "transformers", "trl", "peft", "datasets"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = [
    pytest.mark.train,
    # the libraries' own remarks about their future, which the command silences too
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]

from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.demo import make_tokenizer
from diagnose.callbacks.qlora.train import train
from diagnose.cli import main


@pytest.fixture(scope="module")
def place(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder full of what can be wrong: models, adapters and data by the names that the cases use."""
    folder = tmp_path_factory.mktemp("bad")
    good = {"model": str(tiny_base / "base"), "data": str(tiny_base / "examples.jsonl"), "method": "lora", "device": "cpu"}
    train(TrainConfig(**good, max_steps=2, output_dir=str(folder / "run"), n_samples=0, report_to="none"))

    def copy(source: Path, name: str) -> Path:
        return Path(shutil.copytree(source, folder / name))

    base, adapter = tiny_base / "base", folder / "run" / "best"
    copy(base, "good")
    shutil.copyfile(tiny_base / "examples.jsonl", folder / "good.jsonl")
    weights = copy(base, "cut-model") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    (copy(base, "no-weights") / "model.safetensors").unlink()
    tokenless = copy(base, "no-tokenizer")
    (tokenless / "tokenizer.json").unlink()
    (tokenless / "tokenizer_config.json").unlink()
    make_tokenizer([f"word{i} other{i}" for i in range(400)]).save_pretrained(copy(base, "other-tokenizer"))
    config = json.loads((folder / "other-tokenizer" / "config.json").read_text())
    (folder / "other-tokenizer" / "config.json").write_text(json.dumps(config | {"vocab_size": 200}))
    (folder / "empty-folder").mkdir()
    damaged = copy(adapter, "cut-adapter") / "adapter_model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:4000])
    other = copy(adapter, "other-adapter") / "adapter_config.json"
    other.write_text(json.dumps(json.loads(other.read_text()) | {"r": 3}))
    (folder / "empty.jsonl").write_text("")
    (folder / "columns.jsonl").write_text('{"a": 1, "b": "x"}\n')
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    (folder / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    (folder / "theirs").mkdir()
    (folder / "theirs" / "thesis.tex").write_text("years of work")
    (folder / "unknown.yaml").write_text("lerning_rate: 1e-4\n")
    return folder


GOOD = "--model good --data good.jsonl"
CASES = {
    "unknown model": ("--model nosuch/model --data good.jsonl", "no model 'nosuch/model': there is no such folder"),
    "no model folder": ("--model ./nosuch --data good.jsonl", "no model './nosuch'"),
    "no model in the folder": ("--model empty-folder --data good.jsonl", "it has no config.json"),
    "an adapter as a model": ("--model run/best --data good.jsonl", "is an adapter, not a model"),
    "a damaged model": ("--model cut-model --data good.jsonl", "the model in cut-model is damaged"),
    "a model without weights": ("--model no-weights --data good.jsonl", "cannot load the model in no-weights"),
    "a model without a tokenizer": ("--model no-tokenizer --data good.jsonl", "the tokenizer in no-tokenizer"),
    "another model's tokenizer": ("--model other-tokenizer --data good.jsonl", "take the tokenizer that belongs to the model"),
    "no such file": ("--model good --data nosuch.jsonl", "no such file or folder: nosuch.jsonl"),
    "no data": ("--model good", "no data given: --data"),
    "no model": ("", "no model given: --model"),
    "empty data": ("--model good --data empty.jsonl", "empty.jsonl holds no rows"),
    "a column missing": ("--model good --data columns.jsonl", "has the columns a, b; expected messages"),
    "no chat template": ("--model good --data chat.jsonl", "the tokenizer has no chat template"),
    "no validation file": (f"{GOOD} --validation nosuch.jsonl", "no such file or folder: nosuch.jsonl"),
    "a damaged adapter": (f"{GOOD} --start-from cut-adapter", "the adapter in cut-adapter is damaged"),
    "another model's adapter": (f"{GOOD} --start-from other-adapter", "cannot load the adapter in other-adapter"),
    "no adapter": (f"{GOOD} --start-from good", "holds no adapter to start from"),
    "no GPU": (f"{GOOD} --device cuda", "torch sees no GPU"),
    "no kernels for packing": (f"{GOOD} --packing", "packing needs FlashAttention"),
    "a package missing": (f"{GOOD} --liger", "pip install liger-kernel"),
    "an unknown optimizer": (f"{GOOD} --optim best", "best is not a valid OptimizerNames"),
    "unknown layers": (f"{GOOD} --lora-target brain", "Target modules"),
    "batches that do not multiply": (f"{GOOD} --batch 16 --gradient-accumulation-steps 5", "change one of them"),
    "an unknown setting": (f"{GOOD} --config unknown.yaml", "did you mean learning_rate?"),
    "no settings file": (f"{GOOD} --config nosuch.yaml", "nosuch.yaml: No such file"),
    "a rate of nothing": (f"{GOOD} --lr 0", "learning_rate must be above 0"),
    "an unknown flag": (f"{GOOD} --frobnicate 3", "see diagnose train --help"),
    "a taken folder": (f"{GOOD} --output-dir run", "holds a run that reached step 2: continue it with --resume"),
    "somebody's folder": (f"{GOOD} --output-dir theirs --overwrite", "holds files that are no run"),
    "a file as a folder": (f"{GOOD} --output-dir good.jsonl", "is a file, not a folder"),
    "nothing to resume": ("--resume theirs", "holds no run of `diagnose train` to resume"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_told_in_one_line_with_the_cure(
    case: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv, told = CASES[case]
    monkeypatch.chdir(place)
    wanted = argv.split()
    if "--model" in wanted and "--method" not in wanted:
        wanted += ["--method", "lora"]
    if "--model" in wanted and "--output-dir" not in wanted:
        wanted += ["--output-dir", str(tmp_path / "new")]
    assert main(["train", *wanted]) == 2
    error = capsys.readouterr().err
    (line,) = [line for line in error.splitlines() if line.startswith("diagnose: ")]
    assert told in line
    assert "Traceback" not in error
    assert "internal error" not in error
    assert (place / "theirs" / "thesis.tex").read_text() == "years of work"
