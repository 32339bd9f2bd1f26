"""Distributions over actions, chosen by the action space."""

from __future__ import annotations

from gymnasium import spaces

from rlplug.errors import UnsupportedSpaceError
from rlplug.nn.distributions.discrete import Binary, Categorical, MultiCategorical
from rlplug.nn.distributions.distribution import (
    Distribution,
    log_prob_of,
    masked,
    probabilities_of,
)
from rlplug.nn.distributions.gaussian import Gaussian, SquashedGaussian
from rlplug.spaces import AnySpace, describe

__all__ = [
    "Binary",
    "Categorical",
    "Distribution",
    "Gaussian",
    "MultiCategorical",
    "SquashedGaussian",
    "log_prob_of",
    "make_distribution",
    "masked",
    "probabilities_of",
]


def make_distribution(action_space: AnySpace, *, squash: bool = False) -> Distribution:
    """The distribution for an action space; `squash` keeps a Box's actions within its bounds."""
    if isinstance(action_space, spaces.Discrete):
        return Categorical(action_space)
    if isinstance(action_space, spaces.MultiDiscrete):
        return MultiCategorical(action_space)
    if isinstance(action_space, spaces.MultiBinary):
        return Binary(action_space)
    if isinstance(action_space, spaces.Box):
        return SquashedGaussian(action_space) if squash else Gaussian(action_space)
    raise UnsupportedSpaceError(
        f"no distribution over the actions: {describe(action_space)}.",
        "try: an environment whose actions are Discrete, MultiDiscrete, MultiBinary or Box",
    )
