"""What holds for every test: no network, and one thread, since the models are tiny and the machine is shared."""

from __future__ import annotations

import os

# Before torch, transformers and numpy are imported: they read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: No tests, and not to be imported in search of doctests where the train extra is not installed.
collect_ignore = ["tiny.py"]
