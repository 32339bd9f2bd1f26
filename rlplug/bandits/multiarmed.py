"""Arms without features, chosen without a context."""

from __future__ import annotations

from typing import Literal

import attrs
import numpy
from gymnasium import spaces

from rlplug.bandits.environments import BanditEnv, BanditVectorEnv
from rlplug.bandits.problem import Rounds
from rlplug.config import at_least, option

__all__ = ["MultiArmedBandit", "MultiArmedBanditEnv", "MultiArmedBanditVectorEnv"]


@attrs.frozen(kw_only=True)
class MultiArmedBandit:
    """Each arm has a hidden mean reward, drawn uniformly from 0 to 1; there is no context."""

    num_arms: int = option(10, "Number of arms.", at_least(2))
    rewards: Literal["bernoulli", "gaussian"] = option(
        "bernoulli", "'bernoulli': 0 or 1; 'gaussian': the mean plus noise."
    )
    noise: float = option(0.5, "Standard deviation of Gaussian rewards.", at_least(0))
    problem_seed: int | None = option(
        None, "Seed of the hidden means; unset: the seed given to reset."
    )

    @property
    def observation_space(self) -> spaces.Discrete:
        """One observation, always the same."""
        return spaces.Discrete(1)

    def start(self, seed: int) -> _MultiArmedSource:
        """Start the problem."""
        return _MultiArmedSource(self, seed)


class MultiArmedBanditEnv(BanditEnv):
    """`MultiArmedBandit-v0`, one environment."""

    kind = MultiArmedBandit


class MultiArmedBanditVectorEnv(BanditVectorEnv):
    """`MultiArmedBandit-v0`, n environments at once."""

    kind = MultiArmedBandit


class _MultiArmedSource:
    def __init__(self, problem: MultiArmedBandit, seed: int) -> None:
        self._problem = problem
        self.means = numpy.random.default_rng(seed).random(problem.num_arms)

    def draw(self, random: numpy.random.Generator, steps: int, n: int) -> Rounds:
        shape = (steps, n, len(self.means))
        expected = numpy.broadcast_to(self.means, shape)
        if self._problem.rewards == "bernoulli":
            rewards = (random.random(shape) < self.means).astype(numpy.float64)
        else:
            rewards = expected + self._problem.noise * random.standard_normal(shape)
        return Rounds(
            observations=numpy.zeros(shape[:2], numpy.int64),
            rewards=rewards,
            expected=expected,
            best=numpy.full(shape[:2], self.means.max()),
        )
