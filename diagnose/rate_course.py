"""Loss against the summed learning rate, in bounded memory: what the verdict on the rate is read from.

Below the best rate the loss is a function of the sum of the learning rate over the steps, whatever the rate. One run then
tells what three times its rate would have given: its own course, continued to three times its sum.
"""

from __future__ import annotations

import math

from diagnose.curves import Blocks, Curves
from diagnose.model import Row
from diagnose.names import EVAL_LOSS, LEARNING_RATE, TRAIN_LOSS


class RateCourse:
    """One run's losses, logged against the sum of its learning rate.

    Attributes:
        summed: learning rate times steps so far, each log's rate counted for the steps up to it.
        train: (summed, logarithm of the training loss) in blocks.
        rates: (step, learning rate) in the same blocks.
        evals: (summed, logarithm of the evaluation loss) in blocks.
    """

    def __init__(self) -> None:
        self.summed = 0.0
        self.train = Blocks()
        self.rates = Blocks()
        self.evals = Blocks()
        self._rate: float | None = None
        self._step = 0
        self._has_step = False

    def add(self, row: Row, curves: Curves) -> None:
        """Take in one row that `curves` already holds."""
        rate = row.values.get(LEARNING_RATE)
        if rate is not None and math.isfinite(rate) and rate >= 0:
            self._rate = rate
        if self._rate is None:
            configured = curves.settings.get("learning_rate")
            if not isinstance(configured, float) or LEARNING_RATE in curves.tracks or not 0 < configured < math.inf:
                return
            self._rate = configured  # never logged: taken as constant
        steps = max(row.step - self._step, 0) if self._has_step else 1
        self.summed += self._rate * steps
        self._step, self._has_step = row.step, True
        if self.summed <= 0:
            return
        loss, evaluation = row.values.get(TRAIN_LOSS), row.values.get(EVAL_LOSS)
        if loss is not None and math.isfinite(loss):
            self.train.add(self.summed, curves[TRAIN_LOSS].logs[-1])
            self.rates.add(row.step, self._rate)
        if evaluation is not None and math.isfinite(evaluation):
            self.evals.add(self.summed, curves[EVAL_LOSS].logs[-1])
