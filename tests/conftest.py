"""What holds for every test: no network, and one thread, since the models are tiny and the machine is shared."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

# Before torch, transformers and numpy are imported: they read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
if not os.environ.get("TEST_GPU"):  # TEST_GPU=1 python -m pytest -m gpu
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: No tests, and not to be imported in search of doctests where the train extra is not installed.
collect_ignore = ["tiny.py"]


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama that has learned a little, and `examples.jsonl` beside it: the demo's, made once."""
    pytest.importorskip("torch", reason="needs the train extra")
    from diagnose.callbacks.qlora import demo

    folder = tmp_path_factory.mktemp("base")
    here = Path(demo.__file__).parent
    demo.make_base(folder / "base", (here / "base.txt").read_text(encoding="utf-8").splitlines(), steps=60)
    shutil.copyfile(here / "examples.jsonl", folder / "examples.jsonl")
    return folder
