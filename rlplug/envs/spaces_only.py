"""Spaces in place of environments: of a log, of a module's agents, or of environments elsewhere."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlplug.envs.environments import Environments
from rlplug.errors import RequestError

__all__ = ["SpacesOnly", "spaces_only"]


class SpacesOnly(VectorEnv[Any, Any, Any]):
    """Has the spaces of an environment, and refuses to be stepped."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        num_envs: int = 1,
    ) -> None:
        self.num_envs = num_envs
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)

    def reset(self, **options: Any) -> NoReturn:
        """Refused."""
        raise RequestError("a log cannot be stepped.", "try: --env ID")

    def step(self, actions: Any) -> NoReturn:
        """Refused."""
        raise RequestError("a log cannot be stepped.", "try: --env ID")


def spaces_only(
    name: str, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> Environments:
    """What a run has in place of environments."""
    vector = SpacesOnly(observation_space, action_space)
    return Environments(vector, name, AutoresetMode.SAME_STEP)
