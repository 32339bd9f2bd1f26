"""Base classes of bandit environments: a single one, and a vectorised one in NumPy."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlplug.bandits.problem import Floats, Problem, problem_from_options
from rlplug.bandits.simulator import BanditSimulator
from rlplug.errors import RequestError

__all__ = ["BanditEnv", "BanditVectorEnv"]


class BanditEnv(gymnasium.Env[Any, Any]):
    """A bandit with episodes of one step: `reset` returns a context, `step` the reward of an arm.

    `step` returns the same context again; `info` has `best_reward`, `expected_reward` and `regret`.
    """

    kind: ClassVar[type[Any]]
    """The class of its problem."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        refuse_rendering(type(self).__name__, render_mode)
        self.problem: Problem = problem_from_options(self.kind, type(self).__name__, options)
        self._simulator = BanditSimulator(self.problem, type(self).__name__, 1)
        self.observation_space = self.problem.observation_space
        self.action_space = spaces.Discrete(self.problem.num_arms)

    @property
    def problem_seed(self) -> int:
        """As the option `problem_seed` it gives another environment the same hidden parameters."""
        return self._simulator.problem_seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the next context; a seed starts the problem over."""
        super().reset(seed=seed)
        if seed is not None or not self._simulator.started:
            self._simulator.reset(self.np_random, seed)
        return _first(self._simulator.next_contexts()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Returns the reward of the arm; the episode terminates."""
        rewards, infos = self._simulator.pull(numpy.asarray(action).reshape(1))
        info = {name: values[0].item() for name, values in infos.items()}
        return _first(self._simulator.contexts(), copy=True), rewards[0].item(), True, False, info


class BanditVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """n bandits of one problem, their contexts drawn from one generator.

    Each step terminates all episodes and returns the next contexts. Infos have `best_reward`,
    `expected_reward` and `regret`, arrays of n, but no `final_obs`: nothing follows the only step.
    """

    kind: ClassVar[type[Any]]
    """The class of their problem."""

    metadata: dict[str, Any] = {
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": [],
    }

    def __init__(
        self, num_envs: int = 1, *, render_mode: str | None = None, **options: Any
    ) -> None:
        refuse_rendering(type(self).__name__, render_mode)
        self.problem: Problem = problem_from_options(self.kind, type(self).__name__, options)
        self._simulator = BanditSimulator(self.problem, type(self).__name__, num_envs)
        self.num_envs = num_envs
        self.single_observation_space = self.problem.observation_space
        self.single_action_space = spaces.Discrete(self.problem.num_arms)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._all = numpy.ones(num_envs, dtype=numpy.bool_)
        self._present: dict[str, Any] = {}
        """Which environments have the infos of a step: all."""

    @property
    def problem_seed(self) -> int:
        """As the option `problem_seed` it gives another environment the same hidden parameters."""
        return self._simulator.problem_seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the next n contexts; a seed starts the problem over."""
        super().reset(seed=seed)
        if seed is not None or not self._simulator.started:
            self._simulator.reset(self.np_random, seed)
        return self._simulator.next_contexts(), {}

    def step(self, actions: Any) -> tuple[Any, Floats, NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Returns the next n contexts and the rewards of the arms."""
        rewards, infos = self._simulator.pull(actions)
        if len(self._present) < len(infos):
            self._present = {f"_{name}": self._all for name in infos}
        infos |= self._present
        truncated = numpy.zeros(self.num_envs, numpy.bool_)
        return self._simulator.next_contexts(), rewards, self._all.copy(), truncated, infos


def refuse_rendering(name: str, render_mode: str | None) -> None:
    """Bandits cannot be rendered."""
    if render_mode is not None:
        raise RequestError(
            f"{name} has nothing to draw: render_mode must be left out, got {render_mode!r}."
        )


def _first(observations: Any, *, copy: bool = False) -> Any:
    if isinstance(observations, dict):
        return {name: _first(part, copy=copy) for name, part in observations.items()}
    return observations[0].copy() if copy else observations[0]
