"""The two forms of every bandit problem: one environment, and n of them in one NumPy call."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlplug.bandits.dealer import Dealer
from rlplug.bandits.problem import Floats, Problem, described
from rlplug.errors import RequestError

__all__ = ["BanditEnv", "BanditVectorEnv"]


class BanditEnv(gymnasium.Env[Any, Any]):
    """One bandit: each reset brings a context, the only step of the episode pays for an arm.

    `step` returns the context it was in; `info` tells `best_reward`, `expected_reward`, `regret`.
    """

    kind: ClassVar[type[Any]]
    """The problem that it plays."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        refuse_rendering(type(self).__name__, render_mode)
        self.problem: Problem = described(self.kind, type(self).__name__, options)
        self._dealer = Dealer(self.problem, type(self).__name__, 1)
        self.observation_space = self.problem.observation_space
        self.action_space = spaces.Discrete(self.problem.num_arms)

    @property
    def problem_seed(self) -> int:
        """Given as the option `problem_seed`, it makes another environment of this problem."""
        return self._dealer.problem_seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The next context; with a seed, the problem begins anew."""
        super().reset(seed=seed)
        if seed is not None or not self._dealer.started:
            self._dealer.restart(self.np_random, seed)
        return _first(self._dealer.deal()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What the arm pays; the episode is over."""
        rewards, infos = self._dealer.pay(numpy.asarray(action).reshape(1))
        info = {name: values[0].item() for name, values in infos.items()}
        return _first(self._dealer.dealt(), copy=True), rewards[0].item(), True, False, info


class BanditVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """n bandits of one problem, their contexts drawn from one generator.

    Each step ends all episodes and returns the next contexts at once. As nothing follows the only
    step of an episode, infos have no `final_obs`; they have `best_reward`, `expected_reward` and
    `regret`, arrays of n.
    """

    kind: ClassVar[type[Any]]
    """The problem that they play."""

    metadata: dict[str, Any] = {
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": [],
    }

    def __init__(
        self, num_envs: int = 1, *, render_mode: str | None = None, **options: Any
    ) -> None:
        refuse_rendering(type(self).__name__, render_mode)
        self.problem: Problem = described(self.kind, type(self).__name__, options)
        self._dealer = Dealer(self.problem, type(self).__name__, num_envs)
        self.num_envs = num_envs
        self.single_observation_space = self.problem.observation_space
        self.single_action_space = spaces.Discrete(self.problem.num_arms)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._all = numpy.ones(num_envs, dtype=numpy.bool_)

    @property
    def problem_seed(self) -> int:
        """Given as the option `problem_seed`, it makes another environment of this problem."""
        return self._dealer.problem_seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The next n contexts; with a seed, the problem begins anew."""
        super().reset(seed=seed)
        if seed is not None or not self._dealer.started:
            self._dealer.restart(self.np_random, seed)
        return self._dealer.deal(), {}

    def step(self, actions: Any) -> tuple[Any, Floats, NDArray[Any], NDArray[Any], dict[str, Any]]:
        """What the arms pay, and the next n contexts."""
        rewards, infos = self._dealer.pay(actions)
        for name in tuple(infos):
            infos[f"_{name}"] = self._all
        truncated = numpy.zeros(self.num_envs, dtype=numpy.bool_)
        return self._dealer.deal(), rewards, self._all.copy(), truncated, infos


def refuse_rendering(name: str, render_mode: str | None) -> None:
    """A bandit has no picture."""
    if render_mode is not None:
        raise RequestError(
            f"{name} has nothing to draw: render_mode must be left out, got {render_mode!r}."
        )


def _first(observations: Any, *, copy: bool = False) -> Any:
    if isinstance(observations, dict):
        return {name: _first(part, copy=copy) for name, part in observations.items()}
    return observations[0].copy() if copy else observations[0]
