"""One process of trainings on two: `torchrun --nproc-per-node 2 rank_training.py FOLDER TROUBLE...`; leaves JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from tiny import Classifier, trainer

from diagnose import CurveDoctor
from diagnose.callbacks.gradient_guard import is_finite

EVERY_10: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 10, "save_strategy": "steps", "save_steps": 10}


def main(folder: Path, trouble: str) -> None:
    rank = int(os.environ["RANK"])
    # NaN on one process alone: its loss is not finite there, and only the reduced gradient tells the others.
    model = Classifier(nan_from=6 if trouble == "nan" and rank == 1 else float("inf"))
    options: dict[str, Any] = {"max_steps": 20, "logging_steps": 5}
    if trouble == "memorization":
        options = {"random_labels": True, "n": 32, "max_steps": 300, "logging_steps": 5, "load_best_model_at_end": True}
        options |= EVERY_10
    if trouble in ("healthy", "resumed"):
        options |= {"save_strategy": "steps", "save_steps": 10}
    doctor = CurveDoctor(rollback=trouble == "memorization")
    made = trainer(folder, [doctor], model=model, ddp_backend="gloo", ddp_timeout=60, **options)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        made.train(resume_from_checkpoint=str(folder.parent / "healthy" / "checkpoint-10") if trouble == "resumed" else None)
    assert doctor.examination is not None
    told = {
        "last_step": made.state.global_step,
        "findings": [[f.name, f.first_step, f.last_step, f.severity] for f in doctor.examination.report().findings],
        "stop": doctor.examination.stop.step,
        "finite": is_finite(made.model),
        "failed": doctor.failed,
        "said": [line for line in out.getvalue().splitlines() if "curve-doctor" in line],
    }
    (folder.parent / f"rank-{rank}-{trouble}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        main(Path(sys.argv[1]) / name, name)
