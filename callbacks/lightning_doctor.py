"""The doctor in a Lightning Trainer: `Trainer(callbacks=[LightningCurveDoctor()])`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from diagnose.doctor import Doctor
from diagnose.rows import number


class LightningCurveDoctor(Callback):  # type: ignore[misc]  # lightning is not followed by mypy, so its class is Any
    """Watches a Lightning training, and stops one that is lost.

    It looks at every `log_every_n_steps`-th training step and at every validation. The loss is what `training_step` returns;
    of the validation it takes what was logged with a name that begins with `val`. All processes stop together, as soon as one
    has a reason.

    Args:
        options: see `diagnose.Doctor`.

    Raises:
        ConfigError: a rule or threshold that does not exist, or a value that makes no sense.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        #: The doctor of the run being watched, or of the last one.
        self.doctor = Doctor(**options)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Start afresh, with the plan."""
        steps = trainer.max_steps if trainer.max_steps > 0 else None
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        plan = {name: value for name, value in (("max_steps", steps), ("num_train_epochs", epochs)) if value}
        self.doctor = Doctor(**{**self.options, "settings": {**plan, **self.options.get("settings", {})}})

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """One training step; while gradients are accumulated the step stays the same, and only its first batch counts."""
        if trainer.global_step == 0 or trainer.global_step % max(1, trainer.log_every_n_steps):
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        rate = trainer.optimizers[0].param_groups[0]["lr"] if trainer.optimizers else None
        self.doctor.log(trainer.global_step, trainer.current_epoch, loss=loss, learning_rate=rate)
        self._maybe_stop(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """One validation; the sanity check before the training is none."""
        if trainer.sanity_checking:
            return
        found = {name: number(value) for name, value in trainer.callback_metrics.items() if str(name).startswith("val")}
        self.doctor.log(trainer.global_step, trainer.current_epoch, **found)
        self._maybe_stop(trainer)

    def _maybe_stop(self, trainer: Any) -> None:
        if trainer.strategy.reduce_boolean_decision(self.doctor.should_stop, all=False):
            trainer.should_stop = True
