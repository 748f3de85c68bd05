"""The rules, in the order of their codes."""

from __future__ import annotations

from diagnose.rules.attended_padding import AttendedPadding
from diagnose.rules.base import Example, Rule, Watch, threshold
from diagnose.rules.best_checkpoint_passed import BestCheckpointPassed
from diagnose.rules.clipped_completions import ClippedCompletions
from diagnose.rules.collapsed_loss import CollapsedLoss
from diagnose.rules.dpo_no_signal import DpoNoSignal
from diagnose.rules.dpo_overoptimized import DpoOveroptimized
from diagnose.rules.endless_checkpoints import EndlessCheckpoints
from diagnose.rules.epoch_staircase import EpochStaircase
from diagnose.rules.eval_save_mismatch import EvalSaveMismatch
from diagnose.rules.exploding_gradient import ExplodingGradient
from diagnose.rules.fast_high_rank import FastHighRank
from diagnose.rules.faulty_gradients import FaultyGradients
from diagnose.rules.flat_loss import FlatLoss
from diagnose.rules.grpo_no_signal import GrpoNoSignal
from diagnose.rules.half_precision import HalfPrecision
from diagnose.rules.hidden_nan import HiddenNan
from diagnose.rules.kl_explosion import KlExplosion
from diagnose.rules.learning_rate_out_of_range import LearningRateOutOfRange
from diagnose.rules.long_sequences import LongSequences
from diagnose.rules.loose_clipping import LooseClipping
from diagnose.rules.loss_divergence import LossDivergence
from diagnose.rules.loss_spike import LossSpike
from diagnose.rules.low_precision_weights import LowPrecisionWeights
from diagnose.rules.many_epochs import ManyEpochs
from diagnose.rules.masked_end_token import MaskedEndToken
from diagnose.rules.masked_labels import MaskedLabels
from diagnose.rules.memorization import Memorization
from diagnose.rules.missing_eval import MissingEval
from diagnose.rules.mixed_runs import MixedRuns
from diagnose.rules.nan_eval import NanEval
from diagnose.rules.nan_filter import NanFilter
from diagnose.rules.nan_loss import NanLoss
from diagnose.rules.no_gradient import NoGradient
from diagnose.rules.odd_effective_batch import OddEffectiveBatch
from diagnose.rules.odd_warm_up import OddWarmUp
from diagnose.rules.plateau import Plateau
from diagnose.rules.rare_evals import RareEvals
from diagnose.rules.rare_logs import RareLogs
from diagnose.rules.reference_mismatch import ReferenceMismatch
from diagnose.rules.reward_collapse import RewardCollapse
from diagnose.rules.reward_hacking import RewardHacking
from diagnose.rules.scaled_loss import ScaledLoss
from diagnose.rules.slow_loss import SlowLoss
from diagnose.rules.steps_go_back import StepsGoBack
from diagnose.rules.still_learning import StillLearning
from diagnose.rules.strong_weight_decay import StrongWeightDecay
from diagnose.rules.too_short import TooShort
from diagnose.rules.undecayed_rate import UndecayedRate
from diagnose.rules.unkept_best import UnkeptBest
from diagnose.rules.unpaged_optimizer import UnpagedOptimizer
from diagnose.rules.unstable_loss import UnstableLoss
from diagnose.rules.untrained_parameters import UntrainedParameters
from diagnose.rules.wrong_best_metric import WrongBestMetric
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
    LearningRateOutOfRange,
    ManyEpochs,
    OddEffectiveBatch,
    LongSequences,
    OddWarmUp,
    UndecayedRate,
    LooseClipping,
    StrongWeightDecay,
    HalfPrecision,
    UnpagedOptimizer,
    RareLogs,
    RareEvals,
    EvalSaveMismatch,
    UnkeptBest,
    WrongBestMetric,
    EndlessCheckpoints,
    NanFilter,
    FastHighRank,
    DpoNoSignal,
    DpoOveroptimized,
    ReferenceMismatch,
    GrpoNoSignal,
    KlExplosion,
    RewardCollapse,
    RewardHacking,
    ClippedCompletions,
    StepsGoBack,
    MixedRuns,
    ScaledLoss,
    TooShort,
    MissingEval,
    MaskedLabels,
    MaskedEndToken,
    AttendedPadding,
    UntrainedParameters,
    LowPrecisionWeights,
    FaultyGradients,
)

__all__ = ["RULES", "Example", "Rule", "Watch", "threshold"]
