"""Small algorithms that pass every check, and that add-ons are checked with."""

from rlplug.testing.algorithms.arm_means import ArmMeans
from rlplug.testing.algorithms.other_feeds import ReplayQLearning, RolloutGradient
from rlplug.testing.algorithms.policy_gradient import PolicyGradient, PolicyGradientModule
from rlplug.testing.algorithms.q_learning import QLearning, QLearningModule

__all__ = [
    "ArmMeans",
    "PolicyGradient",
    "PolicyGradientModule",
    "QLearning",
    "QLearningModule",
    "ReplayQLearning",
    "RolloutGradient",
]
