"""How often the whole verdict on the learning rate is right, on recorded sweeps that its weights were not fitted to.

    PYTHONPATH=fixtures:tests/benchmarks python tests/benchmarks/rate_verdict.py

Each sweep is judged by weights fitted to the others; findings and deliberate silence count as they would for a user.
"""

from __future__ import annotations

from collections import Counter

import fit_rate
from sweeps import load_sweeps, truth
from treatment import verdicts_of

DIRECTIONS = ("up", "hold", "down", "unknown")


def main() -> None:
    """Print a confusion table of the whole runs, and one of their first halves."""
    sweeps = [s for s in load_sweeps() if len(s.runs) == 9]
    every = list(fit_rate.samples())
    for cut in (1.0, 0.5):
        table: Counter[tuple[str, str]] = Counter()
        for sweep in sweeps:
            said = verdicts_of(sweep, every, cut)
            table.update((found.direction.value, right) for found, right in zip(said, truth(sweep), strict=True))
        n = sum(table.values())
        right = sum(count for (said_, true), count in table.items() if said_ == true)
        wrong = table["up", "down"] + table["down", "up"]
        silent = sum(table["unknown", true] for true in DIRECTIONS)
        print(f"first {cut:.0%} of {n} runs: right {right / n:.1%}, wrong way {wrong / n:.1%}, silent {silent / n:.1%}")
        print(f"{'said / true':<14}" + "".join(f"{true:>8}" for true in DIRECTIONS[:3]))
        for said_ in DIRECTIONS:
            print(f"{said_:<14}" + "".join(f"{table[said_, true]:>8}" for true in DIRECTIONS[:3]))


if __name__ == "__main__":
    main()
