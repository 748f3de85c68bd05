"""Which examples are held out for validation, and that none of them is trained on as well."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from typing import Any

#: The share that is held out, and the least number where there are enough examples.
SHARE, LEAST = 0.05, 50

#: Enough examples for the least number to be no more than a tenth of them.
ENOUGH = 10 * LEAST

#: Below `ENOUGH` a tenth is held out; below this nothing is, since two examples measure nothing.
TOO_FEW = 20

#: More than this tells no more: the noise of a mean over 2,000 examples is a forty-fifth of that of one.
MOST = 2000


def n_held_out(n: int) -> int:
    """How many of n different examples are held out: 5 %, at least 50 of 500 and more, a tenth of fewer, none below 20.

    >>> [n_held_out(n) for n in (10, 100, 500, 2000, 1_000_000)]
    [0, 10, 50, 100, 2000]
    """
    if n < TOO_FEW:
        return 0
    if n < ENOUGH:
        return n // 10
    return min(max(LEAST, round(n * SHARE)), MOST)


def key(example: Any) -> bytes:
    """What two examples have in common if they are the same: 16 bytes, since a data set may hold gigabytes of text."""
    return hashlib.blake2b(json.dumps(example, sort_keys=True).encode(), digest_size=16).digest()


def held_out(keys: Sequence[bytes], *, seed: int) -> list[int]:
    """Draw the examples to hold out.

    Args:
        keys: of all of them. Only one copy of each example is drawn from.
        seed: the same seed gives the same examples.

    Returns:
        Their indexes, in order; empty where there are too few.
    """
    first: dict[bytes, int] = {}
    for i, each in enumerate(keys):
        first.setdefault(each, i)
    unique = list(first.values())
    return sorted(random.Random(seed).sample(unique, n_held_out(len(unique))))
