"""Teams: the agents of a module at one step of an environment, as one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.envs.agents.rows import AgentRows
from rlplug.spaces import ACTION_MASK, AnySpace

__all__ = ["TeamRows", "stored_space"]


def stored_space(
    space: AnySpace, actions: AnySpace, agents: int, state: AnySpace | None
) -> AnySpace:
    """The space of what is stored of `agents` as one row; of an agent alone, if that is 0."""
    parts: dict[str, AnySpace] = {"observation": space}
    if agents:
        parts = {"observation": batch_space(space, agents), "present": spaces.MultiBinary(agents)}
        if isinstance(actions, spaces.Discrete):
            parts[ACTION_MASK] = spaces.MultiBinary((agents, int(actions.n)))
    if state is not None:
        parts["state"] = state
    # A list keeps the order: a mapping would be sorted.
    return spaces.Dict(list(parts.items()))


class TeamRows:
    """The rows of a module's agents, those of one environment together.

    A team has a row in each step that one of its agents acted in. Its reward is the mean of its
    agents' rewards, those who are absent included. Its episode ends when none of them is left;
    those who were truncated then are `present` in the final observation, whose value counts.
    """

    mask = None
    """Action masks are part of observations."""

    def __init__(self, rows: AgentRows, actions: AnySpace, over: Any) -> None:
        self._rows, self._size = rows, len(rows.agents)
        self._over = over
        """Environments whose episode ended in the last step, and that were reset."""
        self.num = num = rows.num // self._size
        self._num_actions = int(actions.n) if isinstance(actions, spaces.Discrete) else 0
        self.rewards = numpy.zeros(num)
        self.terminated = numpy.zeros(num, bool)
        self.truncated = numpy.zeros(num, bool)
        self.answered = numpy.zeros(num, bool)
        self.finals: list[tuple[int, dict[str, Any]]] = []

    @property
    def turns(self) -> Any:
        """Teams of which an agent is to act next."""
        return self._together(self._rows.turns).any(1)

    @property
    def observations(self) -> dict[str, Any]:
        """What the agents see, who is there, what they may do, and the global state."""
        rows = self._rows
        seen = {
            "observation": tree_map(self._together, rows.seen),
            "present": self._together(rows.turns),
        }
        if self._num_actions:
            seen[ACTION_MASK] = self._masks()
        if rows.states is not None:
            # That of an agent who is there: others keep what they saw last.
            first = self._together(rows.turns).argmax(1)
            seen["state"] = self._together(rows.states)[numpy.arange(self.num), first]
        return seen

    def describe(self, row: int) -> str:
        """The team of a row, for messages."""
        return f"agents {', '.join(self._rows.agents)} of game {row + 1}"

    def acted(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """What those did whose turn it was, as columns of teams; 0 for all others."""
        which = numpy.flatnonzero(self._rows.turns)

        def placed(leaf: Any) -> Any:
            whole = numpy.zeros((self._rows.num, *leaf.shape[1:]), leaf.dtype)
            whole[which] = leaf
            return self._together(whole)

        return {name: tree_map(placed, to_arrays(column)) for name, column in columns.items()}

    def settle(self) -> None:
        """Take the answers of a step."""
        rows = self._rows
        answered = self._together(rows.answered)
        self.answered = answered.any(1)
        rewards = self._together(numpy.where(rows.answered, rows.rewards, 0))
        self.rewards = rewards.sum(1) / self._size
        over = self.answered & (self._over | ~self.turns)
        goes_on = self._together(rows.answered & rows.truncated & ~rows.terminated)
        self.terminated = over & ~goes_on.any(1)
        self.truncated = over & goes_on.any(1)
        self.finals = []
        if not over.any():
            return
        # Zeros, and masks that allow everything, of those who were not there.
        seen: Any = create_empty_array(rows.space, rows.num, numpy.zeros)
        last = {"observation": seen, "present": goes_on.reshape(-1)}
        if self._num_actions:
            last[ACTION_MASK] = numpy.ones((rows.num, self._num_actions), numpy.int8)
        states = {}
        for row, final in rows.finals:
            own = final["observations"]
            if rows.states is not None:
                states[row // self._size], own = own["state"], own["observation"]
            rows.write(seen, row, own)
            if self._num_actions and ACTION_MASK in final:
                last[ACTION_MASK][row] = final[ACTION_MASK]
        together = tree_map(self._together, last)
        for team in numpy.flatnonzero(over).tolist():
            whole = tree_map(lambda leaf, team=team: leaf[team], together)
            if team in states:
                whole["state"] = states[team]
            self.finals.append((team, {"observations": whole}))

    def _masks(self) -> Any:
        rows = self._rows
        if rows.mask is None:
            return numpy.ones((self.num, self._size, self._num_actions), numpy.int8)
        masks = numpy.array(rows.mask, numpy.int8)
        masks[~rows.turns] = 1
        return self._together(masks)

    def _together(self, leaf: Any) -> Any:
        return leaf.reshape(self.num, self._size, *leaf.shape[1:])
