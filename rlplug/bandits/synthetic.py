"""Problems with hidden parameters: arms without features, fixed arms, and arms with features."""

from __future__ import annotations

import math
from typing import Literal

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.bandits.environments import BanditEnv, BanditVectorEnv, Floats, Rounds
from rlplug.config import at_least, option

__all__ = [
    "DriftingParameters",
    "FeatureBandit",
    "FeatureBanditEnv",
    "FeatureBanditVectorEnv",
    "LinearBandit",
    "LinearBanditEnv",
    "LinearBanditVectorEnv",
    "MultiArmedBandit",
    "MultiArmedBanditEnv",
    "MultiArmedBanditVectorEnv",
]


@attrs.frozen(kw_only=True)
class _Drifting:
    """Options of problems whose hidden parameters may drift."""

    num_arms: int = option(10, "Number of arms; where they vary, the most.", at_least(2))
    context_dim: int = option(8, "Features of a context; contexts have norm 1.", at_least(2))
    noise: float = option(0.1, "Standard deviation of the noise on rewards.", at_least(0))
    drift: float = option(0.0, "Distance that the hidden parameters move per step.", at_least(0))
    problem_seed: int | None = option(
        None, "Seed of the hidden parameters; unset: the seed given to reset."
    )


class DriftingParameters:
    """Parameter vectors of norm 1, the rows of a matrix, on a random walk over the sphere.

    They move `drift` per environment step, by a generator of their own: environments with the same
    problem seed have the same parameters at the same step.
    """

    def __init__(self, count: int, dim: int, *, drift: float, seed: int) -> None:
        self._random = numpy.random.default_rng(seed)
        self._scale = drift / math.sqrt(dim)
        self.rows = _unit_rows(self._random.standard_normal((count, dim)))

    def products(self, inputs: Floats) -> Floats:
        """`inputs @ rows.T`, (steps, n, dim) to (steps, n, count); rows drift after each step."""
        steps, n, dim = inputs.shape
        if not self._scale:
            flat: Floats = inputs.reshape(steps * n, dim) @ self.rows.T
            return flat.reshape(steps, n, -1)
        products = numpy.empty((steps, n, len(self.rows)))
        for step, given in enumerate(inputs):
            numpy.matmul(given, self.rows.T, out=products[step])
            # Variances of a random walk add up: n steps are one step √n times as long.
            noise = self._random.standard_normal(self.rows.shape)
            self.rows = _unit_rows(self.rows + self._scale * math.sqrt(n) * noise)
        return products


def _unit_rows(vectors: Floats) -> Floats:
    """The vectors along the last axis, scaled to norm 1."""
    norms = numpy.sqrt(numpy.einsum("...i,...i->...", vectors, vectors))
    scaled: Floats = vectors / norms[..., None]
    return scaled


@attrs.frozen(kw_only=True)
class LinearBandit(_Drifting):
    """The reward of an arm is its hidden parameters, of norm 1, times the context, plus noise."""

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
        contexts = _unit_rows(random.standard_normal((steps, n, self._problem.context_dim)))
        expected = self._parameters.products(contexts)
        noise = self._problem.noise * random.standard_normal((steps, n, 1))
        return Rounds(
            observations=contexts,
            rewards=expected + noise,
            expected=expected,
            best=expected.max(axis=2),
        )


@attrs.frozen(kw_only=True)
class FeatureBandit(_Drifting):
    """Arms vary; the reward is cᵀWa + vᵀa for context c and arm features a, with hidden W and v."""

    min_arms: int = option(2, "Minimum number of arms of a context.", at_least(1))
    arm_dim: int = option(8, "Features of an arm; those of a present arm have norm 1.", at_least(2))

    def __attrs_post_init__(self) -> None:
        if self.min_arms > self.num_arms:
            raise ValueError(
                f"min_arms must be at most num_arms, got {self.min_arms} and {self.num_arms}"
            )

    @property
    def observation_space(self) -> spaces.Dict:
        """Context, arm features (zeros for absent arms), and which arms are present."""
        arms = (self.num_arms, self.arm_dim)
        return spaces.Dict(
            {
                "context": spaces.Box(-1.0, 1.0, (self.context_dim,), numpy.float64),
                "arms": spaces.Box(-1.0, 1.0, arms, numpy.float64),
                "action_mask": spaces.MultiBinary(self.num_arms),
            }
        )

    def start(self, seed: int) -> _FeatureSource:
        """Start the problem."""
        return _FeatureSource(self, seed)


class FeatureBanditEnv(BanditEnv):
    """`FeatureBandit-v0`, one environment."""

    kind = FeatureBandit


class FeatureBanditVectorEnv(BanditVectorEnv):
    """`FeatureBandit-v0`, n environments at once."""

    kind = FeatureBandit


class _FeatureSource:
    def __init__(self, problem: FeatureBandit, seed: int) -> None:
        self._problem = problem
        # Row j weighs feature j of an arm: column j of W, then v_j.
        self._parameters = DriftingParameters(
            problem.arm_dim, problem.context_dim + 1, drift=problem.drift, seed=seed
        )

    def draw(self, random: numpy.random.Generator, steps: int, n: int) -> Rounds:
        problem = self._problem
        contexts = _unit_rows(random.standard_normal((steps, n, problem.context_dim)))
        arms = _unit_rows(random.standard_normal((steps, n, problem.num_arms, problem.arm_dim)))
        present = self._presence(random, steps, n)
        arms[~present] = 0.0
        ones = numpy.ones((steps, n, 1))
        weights = self._parameters.products(numpy.concatenate([contexts, ones], axis=2))
        expected: Floats = numpy.einsum("snaf,snf->sna", arms, weights)
        noise = problem.noise * random.standard_normal((steps, n, 1))
        mask = present.astype(numpy.int8)
        return Rounds(
            observations={"context": contexts, "arms": arms, "action_mask": mask},
            rewards=(expected + noise) * present,
            expected=expected,
            best=numpy.where(present, expected, -numpy.inf).max(axis=2),
            present=present,
        )

    def _presence(self, random: numpy.random.Generator, steps: int, n: int) -> NDArray[numpy.bool_]:
        """A random number of arms at random slots: where a random rank is below the number."""
        problem = self._problem
        counts = random.integers(problem.min_arms, problem.num_arms, (steps, n, 1), endpoint=True)
        ranks = random.random((steps, n, problem.num_arms)).argsort(axis=2)
        present: NDArray[numpy.bool_] = ranks < counts
        return present


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
