"""The gradient of every step, looked at before the optimizer uses it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from diagnose.callbacks.sharding import is_sharded

#: Parameters of each group from which the one to look at is chosen: backward comes to the first ones last, so that what goes
#: wrong anywhere above has reached them.
_FIRST = 8
#: Flags that are left on the device before they are read together.
_LATEST = 8


class BadGradient(NamedTuple):
    """A step whose gradient was not finite, and whether its update was dropped."""

    step: int
    dropped: bool


class GradientGuard:
    """Finds a NaN or infinite gradient at the step where it arises, and drops its update.

    It looks at the gradient of one small parameter near the input. A NaN loss reaches it through backward, and a NaN anywhere
    else through the clipping, which multiplies every gradient by the norm. An overflow to infinity makes the clipping set all
    other gradients to 0; when the one that is looked at is 0, all are looked at. Without clipping, an overflow in another
    parameter is seen one step later.

    Cost: the largest value of one small gradient, some microseconds. On the CPU, and on a GPU while `logging_nan_inf_filter`
    is on (then the Trainer waits for the device at every step anyway), it is read at once and a bad update never reaches the
    weights. With the filter off no wait is forced: flags stay on the device and are read every eighth step and with each log,
    so that a bad gradient is told up to seven steps late and its update is made.

    It does nothing under fp16, where the loss scaler drops bad updates itself, and where parameters are cut up between
    processes (DeepSpeed, FSDP). Under DistributedDataParallel gradients are equal on all processes, so all decide the same.

    Args:
        args: `TrainingArguments`.
        may_drop: whether a bad update may be dropped; if not, it is only told.
    """

    def __init__(self, args: Any, *, may_drop: bool) -> None:
        self.is_on = not getattr(args, "fp16", False) and not is_sharded(args)
        self._may_drop = may_drop
        kind = getattr(args, "device", torch.device("cpu")).type
        # On XLA devices the Trainer's own filter does not wait either.
        self._waits = kind == "cpu" or (kind != "xla" and bool(getattr(args, "logging_nan_inf_filter", False)))
        self._probe: Any = None
        self._turn = 0
        self._flags: list[tuple[int, torch.Tensor]] = []

    def look(self, step: int, optimizer: Any) -> Sequence[BadGradient]:
        """Look at the gradient of one step.

        Args:
            step: that is being made.
            optimizer: whose gradients they are.

        Returns:
            Bad steps that are now known; nearly always none.
        """
        gradient = None if self._probe is None else self._probe.grad
        if gradient is None:
            gradient = self._choose(optimizer) if self.is_on else None
            if gradient is None:
                return ()
        highest = gradient.max()  # NaN if any is; half the price of a sum, and it cannot overflow by itself
        if not self._waits:
            self._flags.append((step, highest))
            return self.read() if len(self._flags) >= _LATEST else ()
        value = highest.item()
        if value - value == 0.0 != value:  # finite, and not 0
            return ()
        if value == 0.0:
            self._probe, self._turn = None, self._turn + 1
            if all(bool(torch.isfinite(g).all()) for _, g in _gradients(optimizer)):
                return ()
        if self._may_drop:
            for parameter, _ in _gradients(optimizer):
                parameter.grad = None
        return (BadGradient(step, self._may_drop),)

    def read(self) -> Sequence[BadGradient]:
        """Read the flags that are still on the device: waits for it."""
        if not self._flags:
            return ()
        steps = [step for step, _ in self._flags]
        values = torch.stack([highest for _, highest in self._flags]).tolist()
        self._flags.clear()
        return tuple(BadGradient(step, False) for step, value in zip(steps, values, strict=True) if not math.isfinite(value))

    def _choose(self, optimizer: Any) -> Any:
        """The gradient of the smallest of the first parameters, another one each time; None where there is none."""
        first = [pair for group in optimizer.param_groups for pair in list(_pairs(group["params"]))[:_FIRST]]
        if not first:
            return None
        if any(type(gradient).__name__ == "DTensor" for _, gradient in first):  # cut up after all
            self.is_on = False
            return None
        first.sort(key=lambda pair: pair[1].numel())
        self._probe, gradient = first[self._turn % len(first)]
        return gradient


def _gradients(optimizer: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    for group in optimizer.param_groups:
        yield from _pairs(group["params"])


def _pairs(parameters: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    for parameter in parameters:
        if parameter.grad is not None and not parameter.grad.is_sparse:
            yield parameter, parameter.grad


def is_finite(model: Any) -> bool:
    """Whether every trainable parameter holds finite numbers only. Waits for the device; made for the rare moment of a save."""
    with torch.no_grad():
        totals = [p.detach().sum(dtype=torch.float32) for p in model.parameters() if p.requires_grad and p.is_floating_point()]
        # A sum overflows only where a weight is near the largest float: such a model is lost as well.
        return not totals or bool(torch.isfinite(torch.stack([t.to(totals[0].device) for t in totals])).all())
