"""The rules, in the order of their codes."""

from __future__ import annotations

from diagnose.rules.base import Example, Rule, Watch, threshold
from diagnose.rules.best_checkpoint_passed import BestCheckpointPassed
from diagnose.rules.collapsed_loss import CollapsedLoss
from diagnose.rules.dpo_no_signal import DpoNoSignal
from diagnose.rules.dpo_overoptimized import DpoOveroptimized
from diagnose.rules.epoch_staircase import EpochStaircase
from diagnose.rules.exploding_gradient import ExplodingGradient
from diagnose.rules.flat_loss import FlatLoss
from diagnose.rules.hidden_nan import HiddenNan
from diagnose.rules.loss_divergence import LossDivergence
from diagnose.rules.loss_spike import LossSpike
from diagnose.rules.memorization import Memorization
from diagnose.rules.missing_eval import MissingEval
from diagnose.rules.mixed_runs import MixedRuns
from diagnose.rules.nan_eval import NanEval
from diagnose.rules.nan_loss import NanLoss
from diagnose.rules.no_gradient import NoGradient
from diagnose.rules.plateau import Plateau
from diagnose.rules.reference_mismatch import ReferenceMismatch
from diagnose.rules.scaled_loss import ScaledLoss
from diagnose.rules.slow_loss import SlowLoss
from diagnose.rules.steps_go_back import StepsGoBack
from diagnose.rules.still_learning import StillLearning
from diagnose.rules.too_short import TooShort
from diagnose.rules.unstable_loss import UnstableLoss
from diagnose.rules.zero_learning_rate import ZeroLearningRate
from diagnose.rules.zero_loss import ZeroLoss

#: Every rule class, in the order of their codes. An explicit tuple: a rule exists when it stands here.
RULES: tuple[type[Rule], ...] = (
    NanLoss,
    HiddenNan,
    ZeroLoss,
    NanEval,
    LossSpike,
    LossDivergence,
    UnstableLoss,
    ExplodingGradient,
    CollapsedLoss,
    FlatLoss,
    SlowLoss,
    ZeroLearningRate,
    NoGradient,
    Memorization,
    EpochStaircase,
    BestCheckpointPassed,
    Plateau,
    StillLearning,
    DpoNoSignal,
    DpoOveroptimized,
    ReferenceMismatch,
    StepsGoBack,
    MixedRuns,
    ScaledLoss,
    TooShort,
    MissingEval,
)

__all__ = ["RULES", "Example", "Rule", "Watch", "threshold"]
