"""Environments with exact answers, solved in seconds: what fails there is a bug, not bad luck."""

from rlplug.testing.probes.bandits import AbsentBestArm, KnownBestArm
from rlplug.testing.probes.long import (
    DelayedReward,
    DiscountedTwoSteps,
    Ending,
    StayOrLeave,
    TimeLimit,
)
from rlplug.testing.probes.one_step import (
    ConstantReward,
    MaskedBest,
    RewardByAction,
    RewardByBoth,
    RewardByObservation,
)
from rlplug.testing.probes.probe import PROBES, Answer, Probe
from rlplug.testing.probes.t_maze import TMaze

__all__ = [
    "PROBES",
    "AbsentBestArm",
    "Answer",
    "ConstantReward",
    "DelayedReward",
    "DiscountedTwoSteps",
    "Ending",
    "KnownBestArm",
    "MaskedBest",
    "Probe",
    "RewardByAction",
    "RewardByBoth",
    "RewardByObservation",
    "StayOrLeave",
    "TMaze",
    "TimeLimit",
]
