"""The global state of environments with several agents, for critics that see more than agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy
from gymnasium import spaces

from rlplug.envs.agents.games import Game
from rlplug.errors import RequestError
from rlplug.spaces import AnySpace, without_action_mask

__all__ = ["JoinedObservations", "OwnState", "StateOf", "state_of"]


class OwnState:
    """What the environment's `state()` gives."""

    def __init__(self, space: spaces.Box) -> None:
        self.space = space

    def __call__(self, env: Any, observations: Mapping[str, Any]) -> Any:
        """The state now."""
        found = numpy.asarray(env.state())
        if found.shape != self.space.shape:
            raise ValueError(f"its state() has shape {found.shape}, expected {self.space.shape}")
        return found


class JoinedObservations:
    """The observations of all agents in one row; zeros for agents that have none."""

    def __init__(self, agent_spaces: Mapping[str, tuple[AnySpace, AnySpace]]) -> None:
        self._parts: dict[str, tuple[AnySpace, slice]] = {}
        width = 0
        for agent, (space, _) in agent_spaces.items():
            space = without_action_mask(space)
            size = spaces.flatdim(space)
            self._parts[agent] = (space, slice(width, width + size))
            width += size
        self.space = spaces.Box(-numpy.inf, numpy.inf, (width,), numpy.float32)

    def __call__(self, env: Any, observations: Mapping[str, Any]) -> Any:
        """The observations that were given now."""
        row = numpy.zeros(self.space.shape, numpy.float32)
        for agent, observation in observations.items():
            part = self._parts.get(agent)
            if part is not None:
                flat: Any = spaces.flatten(part[0], observation)
                row[part[1]] = flat
        return row


StateOf: TypeAlias = OwnState | JoinedObservations


def state_of(
    game: Game, name: str, agent_spaces: Mapping[str, tuple[AnySpace, AnySpace]]
) -> StateOf:
    """How to get the state of a game, which is reset to see it.

    It is `state()` where the environment has one, else the observations of all agents.
    """
    env = game.env
    try:
        env.reset(seed=0)
        found = numpy.asarray(env.state())
    except NotImplementedError:
        return _joined(name, agent_spaces)
    except Exception as error:
        raise RequestError(
            f"environment {name!r} has no global state: its state() failed with "
            f"{type(error).__name__}: {error}.",
            "try: an environment without state(); the observations of all agents are joined then",
        ) from error
    if found.dtype.kind not in "biuf":
        raise RequestError(
            f"environment {name!r} has a global state of {found.dtype}, expected an array of "
            "numbers.",
            "fix its state()",
        )
    declared = getattr(env, "state_space", None)
    if not isinstance(declared, spaces.Box):
        return OwnState(spaces.Box(-numpy.inf, numpy.inf, found.shape, numpy.float32))
    if declared.shape != found.shape:
        raise RequestError(
            f"environment {name!r} has a state_space of shape {declared.shape}, and its state() "
            f"has shape {found.shape}.",
            "fix one of them",
        )
    return OwnState(declared)


def _joined(name: str, agent_spaces: Mapping[str, tuple[AnySpace, AnySpace]]) -> JoinedObservations:
    try:
        return JoinedObservations(agent_spaces)
    except (NotImplementedError, ValueError) as error:
        raise RequestError(
            f"environment {name!r} has no state(), and the observations of its agents cannot be "
            f"joined: {error}.",
            "try: define state() and state_space",
        ) from error
