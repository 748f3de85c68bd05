"""The doctor in a Keras training: `model.fit(..., callbacks=[KerasCurveDoctor()])`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from diagnose.doctor import Doctor
from diagnose.rows import number


class KerasCurveDoctor(keras.callbacks.Callback):  # type: ignore[misc]  # keras is not followed by mypy, so its class is Any
    """Watches a Keras training epoch by epoch, and stops one that is lost. A NaN loss is seen at the batch where it arises.

    Args:
        options: see `diagnose.Doctor`.

    Raises:
        ConfigError: a rule or threshold that does not exist, or a value that makes no sense.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        #: The doctor of the run being watched, or of the last one.
        self.doctor = Doctor(**options)
        self._batches = 0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Start afresh."""
        self.doctor, self._batches = Doctor(**self.options), 0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Keras averages the loss over the epoch so far, so that one NaN stays in it: only that is looked at here."""
        self._batches += 1
        loss = number((logs or {}).get("loss"))
        if loss is not None and loss != loss:
            self.doctor.log(self._batches, loss=loss)
            self._maybe_stop()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """The epoch's training and validation metrics."""
        rate = getattr(getattr(self.model, "optimizer", None), "learning_rate", None)
        told = {"learning_rate": None if rate is None else keras.ops.convert_to_numpy(rate), **(logs or {})}
        self.doctor.log(self._batches, epoch + 1, **told)
        self._maybe_stop()

    def _maybe_stop(self) -> None:
        if self.doctor.should_stop:
            self.model.stop_training = True
