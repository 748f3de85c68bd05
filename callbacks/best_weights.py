"""A copy of the trained weights as they were at the best evaluation, to put back at the end."""

from __future__ import annotations

from typing import Any

import torch

#: Larger than that, a copy in the memory of the host is not to be taken for granted; an adapter is far below.
MOST_BYTES = 8 * 1024**3


class BestWeights:
    """Keeps the trainable parameters of the best evaluation in the host's memory.

    It costs one copy of them to the host at each evaluation that is the best so far. Frozen parameters do not change and
    are not kept.
    """

    def __init__(self) -> None:
        #: The step they are of; None before the first evaluation.
        self.step: int | None = None
        self._kept: dict[str, torch.Tensor] = {}

    def keep(self, model: Any, step: int) -> None:
        """Copy the weights as they are now.

        Raises:
            ValueError: they are larger than MOST_BYTES.
        """
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        size = sum(p.numel() * p.element_size() for p in trained.values())
        if size > MOST_BYTES:
            had, most = size / 1024**3, MOST_BYTES / 1024**3
            raise ValueError(
                f"the trained weights take {had:.0f} GiB, and rollback keeps at most {most:.0f} in memory; use "
                "load_best_model_at_end=True instead"
            )
        with torch.no_grad():
            self._kept = {name: p.detach().to("cpu", copy=True) for name, p in trained.items()}
        self.step = step

    def put_back(self, model: Any) -> None:
        """Overwrite the weights with the kept ones."""
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name in self._kept:
                    p.copy_(self._kept[name])
