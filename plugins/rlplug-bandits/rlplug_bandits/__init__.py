"""Bandits without a context: one count and one mean reward per arm, and a rule to choose by."""

from rlplug_bandits.algorithm import UCB1, EpsilonGreedy, MetricUCB, Softmax, Thompson
from rlplug_bandits.config import (
    EpsilonGreedyConfig,
    MetricUCBConfig,
    SoftmaxConfig,
    ThompsonConfig,
    UCB1Config,
)
from rlplug_bandits.counts import ArmCounts
from rlplug_bandits.randomized import EpsilonGreedyModule, SoftmaxModule
from rlplug_bandits.thompson import BetaThompsonModule, GaussianThompsonModule
from rlplug_bandits.ucb import MetricUCBModule, UCB1Module

__all__ = [
    "UCB1",
    "ArmCounts",
    "BetaThompsonModule",
    "EpsilonGreedy",
    "EpsilonGreedyConfig",
    "EpsilonGreedyModule",
    "GaussianThompsonModule",
    "MetricUCB",
    "MetricUCBConfig",
    "MetricUCBModule",
    "Softmax",
    "SoftmaxConfig",
    "SoftmaxModule",
    "Thompson",
    "ThompsonConfig",
    "UCB1Config",
    "UCB1Module",
]
