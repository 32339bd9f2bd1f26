"""Fixed arms whose rewards are linear in the context."""

from __future__ import annotations

import attrs
import numpy
from gymnasium import spaces

from rlplug.bandits.environments import BanditEnv, BanditVectorEnv
from rlplug.bandits.problem import DriftingParameters, Rounds, unit_rows
from rlplug.config import at_least, option

__all__ = ["LinearBandit", "LinearBanditEnv", "LinearBanditVectorEnv"]


@attrs.frozen(kw_only=True)
class LinearBandit:
    """The reward of an arm is its hidden parameters, of norm 1, times the context, plus noise."""

    num_arms: int = option(10, "Number of arms.", at_least(2))
    context_dim: int = option(8, "Features of a context; contexts have norm 1.", at_least(2))
    noise: float = option(0.1, "Standard deviation of the noise on rewards.", at_least(0))
    drift: float = option(0.0, "Distance that the hidden parameters move per step.", at_least(0))
    problem_seed: int | None = option(
        None, "Seed of the hidden parameters; unset: the seed given to reset."
    )

    @property
    def observation_space(self) -> spaces.Box:
        """The features of a context."""
        return spaces.Box(-1.0, 1.0, (self.context_dim,), numpy.float64)

    def start(self, seed: int) -> _LinearSource:
        """Start the problem."""
        return _LinearSource(self, seed)


class LinearBanditEnv(BanditEnv):
    """`LinearBandit-v0`, one environment."""

    kind = LinearBandit


class LinearBanditVectorEnv(BanditVectorEnv):
    """`LinearBandit-v0`, n environments at once."""

    kind = LinearBandit


class _LinearSource:
    def __init__(self, problem: LinearBandit, seed: int) -> None:
        self._problem = problem
        self._parameters = DriftingParameters(
            problem.num_arms, problem.context_dim, drift=problem.drift, seed=seed
        )

    def draw(self, random: numpy.random.Generator, steps: int, n: int) -> Rounds:
        contexts = unit_rows(random.standard_normal((steps, n, self._problem.context_dim)))
        expected = self._parameters.products(contexts)
        noise = self._problem.noise * random.standard_normal((steps, n, 1))
        return Rounds(
            observations=contexts,
            rewards=expected + noise,
            expected=expected,
            best=expected.max(axis=2),
        )
