"""Environments of EnvPool, which steps them in threads of its own, as `envpool/Id-v0`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlplug.errors import RequestError, did_you_mean

__all__ = ["PREFIX", "PoolVector", "register_pool"]

PREFIX = "envpool/"


class PoolVector(VectorEnv[Any, Any, Any]):
    """An EnvPool with the interface of Gymnasium's vector environments.

    EnvPool is seeded when it is made: a reset with a seed makes a new one. Its infos are dropped.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, env_id: str, num_envs: int, arguments: Mapping[str, Any]) -> None:
        """Make it with these arguments of `envpool.make`."""
        self.num_envs = num_envs
        self._env_id, self._arguments = env_id, arguments
        self._pool = self._make(0)
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all; with a seed, each gets one of its own under it."""
        if seed is not None:
            self._pool = self._make(seed)
        observations, _ = self._pool.reset()
        return observations, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all; those whose episode ended in the last step are reset instead."""
        action_space = self.single_action_space
        if isinstance(action_space, gymnasium.spaces.Discrete):
            actions = numpy.asarray(actions, numpy.int32)
        observations, rewards, terminated, truncated, _ = self._pool.step(actions)
        return observations, rewards, terminated, truncated, {}

    def close_extras(self, **kwargs: Any) -> None:
        """End its threads, which the `close` of EnvPool leaves until nothing refers to it."""
        self._pool = None

    def _make(self, seed: Any) -> Any:
        import envpool

        with warnings.catch_warnings():
            # Its spaces are made when they are read, with bounds that are cast to float32.
            warnings.simplefilter("ignore", UserWarning)
            pool = envpool.make_gymnasium(
                self._env_id, num_envs=self.num_envs, seed=seed, **self._arguments
            )
            _ = pool.observation_space, pool.action_space
        return pool


def register_pool(env: str) -> None:
    """Register an environment of EnvPool with Gymnasium, under `envpool/`."""
    if env in gymnasium.registry:
        return
    try:
        import envpool
    except ImportError as error:
        raise RequestError(
            f"environment {env!r} needs EnvPool, which cannot be imported: {error}.",
            "try: pip install 'rlplug[envpool]'",
        ) from error
    env_id = env.removeprefix(PREFIX)
    known = envpool.list_all_envs()
    if env_id not in known:
        guess = did_you_mean(env, [PREFIX + one for one in known], sentence=True)
        raise RequestError(
            f"EnvPool has no environment {env_id!r}. {guess}".rstrip(),
            "try: one of envpool.list_all_envs()",
        )

    def make(num_envs: int, render_mode: Any = None, **arguments: Any) -> PoolVector:
        return PoolVector(env_id, num_envs, arguments)

    creator: Any = make
    creator.metadata = PoolVector.metadata
    gymnasium.register(env, vector_entry_point=creator)
