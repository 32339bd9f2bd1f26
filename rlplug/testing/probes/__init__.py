"""Environments with known answers that a correct algorithm solves within seconds."""

from rlplug.testing.probes.masked_steps import MaskedNext, NoisyChoice
from rlplug.testing.probes.multi_step import (
    DelayedReward,
    DiscountedTwoSteps,
    Ending,
    StayOrLeave,
    TimeLimit,
    TMaze,
)
from rlplug.testing.probes.one_step import (
    AbsentBestArm,
    ConstantReward,
    KnownBestArm,
    MaskedBest,
    RewardByAction,
    RewardByBoth,
    RewardByObservation,
)
from rlplug.testing.probes.other_actions import (
    BothBits,
    BoxByObservation,
    BoxTarget,
    BoxThenReward,
    TwoChoices,
)
from rlplug.testing.probes.probe import PROBES, Answer, Probe

__all__ = [
    "PROBES",
    "AbsentBestArm",
    "Answer",
    "BothBits",
    "BoxByObservation",
    "BoxTarget",
    "BoxThenReward",
    "ConstantReward",
    "DelayedReward",
    "DiscountedTwoSteps",
    "Ending",
    "KnownBestArm",
    "MaskedBest",
    "MaskedNext",
    "NoisyChoice",
    "Probe",
    "RewardByAction",
    "RewardByBoth",
    "RewardByObservation",
    "StayOrLeave",
    "TMaze",
    "TimeLimit",
    "TwoChoices",
]
