"""What the agents of a module see and get: a row for each agent of each game."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from rlplug.batch.nested import tree_map
from rlplug.envs.sync import row_writer
from rlplug.spaces import ACTION_MASK, AnySpace

__all__ = ["AgentRows"]


class AgentRows:
    """The rows of one module, ordered by game.

    A row that is absent, or waits for its turn, keeps what it saw last.
    """

    def __init__(self, observation_space: AnySpace, agents: Sequence[str], num_games: int) -> None:
        self.agents = tuple(agents)
        self.num = num = len(agents) * num_games
        self.space = observation_space
        empty: Any = create_empty_array(observation_space, num, numpy.zeros)
        self.seen = empty
        """What agents see, which they act on."""
        self.observations = empty
        """What is learned from: with a global state, `observation` and `state`."""
        self.states: Any = None
        self.mask: Any = None
        """True where an action may be chosen; None if no agent had a mask so far."""
        self.rewards = numpy.zeros(num)
        # Those whose last action is answered, and those that are to act next.
        each = (numpy.zeros(num, bool) for _ in range(4))
        self.terminated, self.truncated, self.answered, self.turns = each
        self.finals: list[tuple[int, dict[str, Any]]] = []
        """Last observations, with their masks, of rows that ended, in the order they ended."""
        self.write = row_writer(observation_space)
        self.observes_mask = (
            isinstance(observation_space, spaces.Dict) and ACTION_MASK in observation_space.spaces
        )
        if self.observes_mask:
            self.mask = self.seen[ACTION_MASK]
            self.mask[...] = 1

    def add_state(self, space: AnySpace) -> None:
        """Keep the global state of the environment beside what agents see."""
        self.states = create_empty_array(space, self.num, numpy.zeros)
        self.observations = {"observation": self.seen, "state": self.states}

    def describe(self, row: int) -> str:
        """The agent of a row, for messages."""
        game, place = divmod(row, len(self.agents))
        return f"agent {self.agents[place]!r} of game {game + 1}"

    def begin_step(self) -> None:
        """Forget the last step, and whose turn it was."""
        for column in (self.answered, self.terminated, self.truncated, self.turns):
            column[:] = False
        self.finals = []

    def show(self, row: int, observation: Any, info: Mapping[str, Any], state: Any) -> None:
        """A row is to act on this observation."""
        self.write(self.seen, row, observation)
        self.turns[row] = True
        if self.states is not None:
            self.states[row] = state
        if self.observes_mask:
            return
        if ACTION_MASK in info:
            if self.mask is None:
                shape = numpy.shape(info[ACTION_MASK])
                self.mask = numpy.ones((self.num, *shape), numpy.int8)
            self.mask[row] = info[ACTION_MASK]
        elif self.mask is not None:
            self.mask[row] = 1

    def end(
        self,
        row: int,
        terminated: Any,
        truncated: Any,
        observation: Any,
        info: Mapping[str, Any],
        state: Any,
    ) -> None:
        """The episode of a row has ended with this observation."""
        self.terminated[row], self.truncated[row] = bool(terminated), bool(truncated)
        batch = create_empty_array(self.space, 1)
        self.write(batch, 0, observation)
        final: dict[str, Any] = {"observations": tree_map(lambda leaf: leaf[0], batch)}
        mask = None
        if self.observes_mask:
            mask = final["observations"][ACTION_MASK]
        elif self.mask is not None:
            mask = numpy.ones_like(self.mask[row])
            mask[...] = info.get(ACTION_MASK, 1)
        if mask is not None:
            # Nobody acts there: where nothing is allowed, a value needs an action all the same.
            if not mask.any():
                mask[...] = 1
            final[ACTION_MASK] = mask
        if self.states is not None:
            state = numpy.asarray(state, self.states.dtype)
            final["observations"] = {"observation": final["observations"], "state": state}
        self.finals.append((row, final))

    def get_state(self) -> dict[str, Any]:
        """What the next step depends on; not a copy."""
        return {"observations": self.observations, "mask": self.mask, "turns": self.turns}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        tree_map(numpy.copyto, self.observations, saved["observations"])
        if not self.observes_mask:
            self.mask = saved["mask"]
        self.turns[:] = saved["turns"]
