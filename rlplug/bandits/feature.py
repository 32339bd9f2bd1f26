"""Arms with features; each context has its own set of arms."""

from __future__ import annotations

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.bandits.environments import BanditEnv, BanditVectorEnv
from rlplug.bandits.problem import DriftingParameters, Floats, Rounds, unit_rows
from rlplug.config import at_least, option

__all__ = ["FeatureBandit", "FeatureBanditEnv", "FeatureBanditVectorEnv"]


@attrs.frozen(kw_only=True)
class FeatureBandit:
    """Arms vary; the reward is cᵀWa + vᵀa for context c and arm features a, with hidden W and v."""

    num_arms: int = option(10, "Maximum number of arms of a context.", at_least(2))
    min_arms: int = option(2, "Minimum number of arms of a context.", at_least(1))
    context_dim: int = option(8, "Features of a context; contexts have norm 1.", at_least(2))
    arm_dim: int = option(8, "Features of an arm; those of a present arm have norm 1.", at_least(2))
    noise: float = option(0.1, "Standard deviation of the noise on rewards.", at_least(0))
    drift: float = option(0.0, "Distance that the hidden parameters move per step.", at_least(0))
    problem_seed: int | None = option(
        None, "Seed of the hidden parameters; unset: the seed given to reset."
    )

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
        contexts = unit_rows(random.standard_normal((steps, n, problem.context_dim)))
        arms = unit_rows(random.standard_normal((steps, n, problem.num_arms, problem.arm_dim)))
        present = self._presence(random, steps, n)
        arms[~present] = 0.0
        expected = self._expected(contexts, arms)
        noise = problem.noise * random.standard_normal((steps, n, 1))
        return Rounds(
            observations={
                "context": contexts,
                "arms": arms,
                "action_mask": present.astype(numpy.int8),
            },
            rewards=(expected + noise) * present,
            expected=expected,
            best=numpy.where(present, expected, -numpy.inf).max(axis=2),
            present=present,
        )

    def _expected(self, contexts: Floats, arms: Floats) -> Floats:
        ones = numpy.ones((*contexts.shape[:2], 1))
        weights = self._parameters.products(numpy.concatenate([contexts, ones], axis=2))
        expected: Floats = numpy.einsum("snaf,snf->sna", arms, weights)
        return expected

    def _presence(self, random: numpy.random.Generator, steps: int, n: int) -> NDArray[numpy.bool_]:
        """A random number of arms at random slots: where a random rank is below the number."""
        problem = self._problem
        counts = random.integers(problem.min_arms, problem.num_arms, (steps, n, 1), endpoint=True)
        ranks = random.random((steps, n, problem.num_arms)).argsort(axis=2)
        present: NDArray[numpy.bool_] = ranks < counts
        return present
