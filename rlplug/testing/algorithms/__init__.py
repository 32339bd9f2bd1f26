"""Small algorithms: hosts for add-ons under test, and plugins that pass every check."""

from rlplug.testing.algorithms.arm_means import ArmMeans
from rlplug.testing.algorithms.policy_gradient import PolicyGradient, PolicyGradientModule
from rlplug.testing.algorithms.q_learning import QLearning, QLearningModule

__all__ = [
    "ArmMeans",
    "PolicyGradient",
    "PolicyGradientModule",
    "QLearning",
    "QLearningModule",
]
