"""How far the memory formula is from the counted step: a line a setting, and the errors by model.

    python tests/benchmarks/memory_plan.py             against the recorded counts (fixtures/memory_counts.json)
    python tests/benchmarks/memory_plan.py --by-model  only the errors by model

The counts are of tensors without content, by fixtures/record_memory.py: no GPU has measured them. The formula was written
while looking at the models marked `seen`; the others changed nothing in it.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))

from record_memory import COUNTS
from rich.console import Console
from rich.table import Table

from diagnose.callbacks.qlora.memory import predict
from diagnose.callbacks.qlora.shape import shape_of

SEEN = ("TinyLlama 1.1B", "Qwen2.5 0.5B", "Starcoder2 3B", "Llama 2 7B", "Gemma 2B", "GPT-2")


def main() -> None:
    """Print the errors."""
    import json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by-model", action="store_true", help="only the errors by model")
    args = parser.parse_args()
    recorded = json.loads(COUNTS.read_text())
    console = Console(width=110)
    table = Table(title="predicted against counted, MiB")
    for column in ("model", "method", "batch x length", "checkpointing", "accumulated", "counted", "predicted", "error"):
        table.add_column(column, justify="left" if column in ("model", "method") else "right")
    errors = defaultdict(list)
    for entry in recorded["counts"]:
        parts = predict(
            shape_of(recorded["models"][entry["model"]], entry["model"]),
            method=entry["method"],
            batch=entry["batch"],
            length=entry["length"],
            checkpointing=entry["checkpointing"],
            accumulated=entry["accumulated"],
        )
        error = parts.total / entry["peak"] - 1
        errors[entry["model"]].append(error)
        table.add_row(
            entry["model"],
            entry["method"],
            f"{entry['batch']} x {entry['length']}",
            "yes" if entry["checkpointing"] else "no",
            "yes" if entry["accumulated"] else "no",
            f"{entry['peak'] / 2**20:,.0f}",
            f"{parts.total / 2**20:,.0f}",
            f"{error:+.1%}",
        )
    if not args.by_model:
        console.print(table)
    summary = Table(title="errors by model")
    for column in ("model", "seen", "settings", "mean of |error|", "worst"):
        summary.add_column(column, justify="left" if column == "model" else "right")
    for model, found in errors.items():
        worst = max(found, key=abs)
        mean = sum(map(abs, found)) / len(found)
        summary.add_row(model, "seen" if model in SEEN else "", str(len(found)), f"{mean:.2%}", f"{worst:+.1%}")
    console.print(summary)


if __name__ == "__main__":
    main()
