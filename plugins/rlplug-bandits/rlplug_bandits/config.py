"""Options of the bandits without a context."""

from __future__ import annotations

from typing import Literal

import attrs

from rlplug.config import above, at_least, between, option

__all__ = [
    "BanditOptions",
    "EpsilonGreedyConfig",
    "MetricUCBConfig",
    "SoftmaxConfig",
    "ThompsonConfig",
    "UCB1Config",
]


@attrs.frozen(kw_only=True)
class BanditOptions:
    """Options of every bandit without a context."""

    ignore_context: bool = option(
        False, "Run on observations with features as well, which are not read; false: refuse them."
    )
    update_every: int = option(1, "Steps of the (vector) environment per update.", at_least(1))


@attrs.frozen(kw_only=True)
class UCB1Config(BanditOptions):
    """Options of UCB1."""

    alpha: float = option(
        1.0,
        "Factor of the confidence width; 1: as in the paper, 0: greedy.",
        at_least(0),
        schedulable=True,
    )


@attrs.frozen(kw_only=True)
class MetricUCBConfig(UCB1Config):
    """Options of MetricUCB."""


@attrs.frozen(kw_only=True)
class ThompsonConfig(BanditOptions):
    """Options of Thompson sampling."""

    distribution: Literal["beta", "gaussian"] = option(
        "beta",
        "Posterior of an arm's mean reward; 'beta': rewards from 0 to 1, uniform prior; "
        "'gaussian': any rewards.",
    )
    reward_std: float = option(
        1.0, "Gaussian: standard deviation of an arm's rewards around their mean.", above(0)
    )
    prior_mean: float = option(0.0, "Gaussian: expected mean reward of an arm without data.")
    prior_std: float = option(1.0, "Gaussian: standard deviation of that expectation.", above(0))


@attrs.frozen(kw_only=True)
class EpsilonGreedyConfig(BanditOptions):
    """Options of epsilon-greedy."""

    epsilon: float = option(0.1, "Probability of a random arm.", between(0, 1), schedulable=True)
    initial_value: float = option(
        0.0, "Mean reward of an arm without data; high: every arm is tried first."
    )


@attrs.frozen(kw_only=True)
class SoftmaxConfig(BanditOptions):
    """Options of softmax (Boltzmann) exploration."""

    temperature: float = option(
        0.1,
        "Arms are chosen with probabilities proportional to exp(mean reward / temperature).",
        above(0),
        schedulable=True,
    )
    initial_value: float = option(
        0.0, "Mean reward of an arm without data; high: every arm is tried first."
    )
