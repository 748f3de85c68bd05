"""The loss of a model that only guesses: ln of the number of classes or of tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping

from diagnose.model import Setting

#: A guessing loss is met within this share: class weights, label smoothing and GPT-2's (L-1)/L move it that far.
TOLERANCE = 0.03
#: Without a known number of classes only these are tried: beyond 8 neighbours lie closer than twice the tolerance.
_FEW_CLASSES = range(2, 9)


def guessing_among(loss: float, settings: Mapping[str, Setting]) -> int | None:
    """Among how many answers a model with this loss would be guessing.

    Args:
        loss: mean cross-entropy in nats.
        settings: `num_labels` and `vocab_size` are used when known.

    Returns:
        The number of classes or tokens whose logarithm the loss meets within `TOLERANCE`; None when it meets none.

    >>> guessing_among(1.39, {}), guessing_among(10.4, {"vocab_size": 32000}), guessing_among(1.2, {})
    (4, 32000, None)
    """
    known = [settings.get("num_labels"), settings.get("vocab_size")]
    counts = [k for k in known if isinstance(k, int) and not isinstance(k, bool) and k > 1]
    tried = counts if isinstance(settings.get("num_labels"), int) else [*counts, *_FEW_CLASSES]
    for k in tried:
        if abs(loss / math.log(k) - 1.0) <= TOLERANCE:
            return k
    return None
