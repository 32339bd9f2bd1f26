"""Games: PettingZoo's two interfaces as one, a step that says who is to act next."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.envs.making import trying
from rlplug.envs.saving import SavedEnvironments, pickled, unpickled
from rlplug.envs.workers.worker import HeldRows
from rlplug.spaces import ACTION_MASK, AnySpace, without_action_mask

__all__ = ["AecGame", "AgentSpaces", "Answer", "Game", "GlobalState", "HeldGames"]

AgentSpaces = Mapping[str, tuple[AnySpace, AnySpace]]
"""Observation and action space of every agent that may ever be there."""


@dataclass(slots=True)
class Answer:
    """What a step or a reset gave; the mappings are by agent."""

    answered: list[str]
    """Agents whose last action has its reward and its next observation now."""
    agents: Sequence[str]
    """Agents to act next; none: the episode is over."""
    observations: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, Any] = field(default_factory=dict)
    terminated: dict[str, Any] = field(default_factory=dict)
    truncated: dict[str, Any] = field(default_factory=dict)
    infos: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    state: Any = None
    """The global state, if it is asked for."""


class Game:
    """One environment whose live agents all act at once."""

    in_turn = False
    """Whether agents act one after the other; then an action is answered only in the next turn."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.state_of: GlobalState | None = None
        """How to get the global state; None: it is not asked for."""

    def reset(self, seed: int | None) -> Answer:
        """Begin an episode."""
        seen, infos = self.env.reset(seed=seed)
        return self._with_state(Answer([], list(self.env.agents), seen, infos=infos))

    def step(self, actions: Mapping[str, Any]) -> Answer:
        """Let the agents act that are to act."""
        seen, rewards, terminated, truncated, infos = self.env.step(actions)
        columns = seen, rewards, terminated, truncated, infos
        return self._with_state(Answer(list(actions), list(self.env.agents or ()), *columns))

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _with_state(self, answer: Answer) -> Answer:
        if self.state_of is not None:
            answer.state = self.state_of(self.env, answer.observations)
        return answer


class AecGame(Game):
    """One environment whose agents act in turn.

    What the others do until an agent's next turn answers its action.
    """

    in_turn = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._waiting: set[str] = set()
        """Agents that acted and had no turn since."""

    def reset(self, seed: int | None) -> Answer:
        """Begin an episode."""
        self.env.reset(seed=seed)
        self._waiting.clear()
        return self._until_next_turn()

    def step(self, actions: Mapping[str, Any]) -> Answer:
        """Let the agent act whose turn it is."""
        ((agent, action),) = actions.items()
        self.env.step(action)
        self._waiting.add(agent)
        return self._until_next_turn()

    def _until_next_turn(self) -> Answer:
        env, waiting = self.env, self._waiting
        answer, infos = Answer([], []), dict[str, Any]()
        if self.state_of is not None:
            # Agents that have ended are still there.
            answer.state = self.state_of(env, {agent: env.observe(agent) for agent in env.agents})
        columns = answer.observations, answer.rewards, answer.terminated, answer.truncated, infos
        answer.infos = infos
        while env.agents:
            agent = env.agent_selection
            for column, value in zip(columns, env.last(), strict=True):
                column[agent] = value
            if agent in waiting:
                waiting.discard(agent)
                answer.answered.append(agent)
            if not (answer.terminated[agent] or answer.truncated[agent]):
                answer.agents = [agent]
                return answer
            env.step(None)
            if agent in env.agents:
                raise ValueError(f"it keeps agent {agent!r} among its agents after its end")
        if waiting:
            raise ValueError(f"its episode is over, but agent {min(waiting)!r} has not ended")
        return answer


class HeldGames(HeldRows):
    """Games by number, in a worker or in this process."""

    def __init__(
        self,
        make: Callable[[], Game] | None = None,
        state_of: GlobalState | None = None,
        games: Sequence[Game] = (),
    ) -> None:
        """Those that are made later, or these."""
        super().__init__(len(games))
        self._make, self._state_of = make, state_of
        self.held.update(enumerate(games))

    def observe_state(self, state_of: GlobalState | None) -> None:
        """Have the global state in answers."""
        for game in self.held.values():
            game.state_of = state_of

    def make(self, number: int, argument: None) -> None:
        """Make one."""
        assert self._make is not None
        self.held[number] = game = self._make()
        game.state_of = self._state_of

    def reset(self, number: int, seed: int | None) -> list[Answer]:
        """Begin an episode."""
        answer = self.held[number].reset(seed)
        if not answer.agents:
            raise ValueError("it has no agents after a reset")
        return [_with_masks_alone(answer)]

    def step(self, number: int, actions: Mapping[str, Any]) -> list[Answer]:
        """Let the agents act that are to act; after an episode, the next one begins."""
        answer = _with_masks_alone(self.held[number].step(actions))
        if answer.agents:
            return [answer]
        self.doing = "reset"
        # A reset may write into the arrays that the last step returned.
        return [copy.deepcopy(answer), *self.reset(number, None)]

    def save(self, number: int, argument: None) -> SavedEnvironments:
        """Pickle one in the middle of its episode, or say why it cannot be.

        Copies are not tried, as those of environments are: random actions may break rules.
        """
        return pickled(vars(self.held[number]))

    def restore(self, number: int, saved: bytes) -> None:
        """Continue a saved episode."""
        own = vars(self.held[number])
        own.update(unpickled(saved, own))


def _with_masks_alone(answer: Answer) -> Answer:
    """The answer with what is read of infos: workers send it."""
    answer.infos = {
        agent: {ACTION_MASK: info[ACTION_MASK]}
        for agent, info in answer.infos.items()
        if ACTION_MASK in info
    }
    return answer


class GlobalState:
    """The state of environments with several agents, for critics that see more than agents.

    It is `state()` where the environment has one, else the observations of all agents in a row,
    with zeros for those that have none.
    """

    def __init__(self, env: Any, name: str, agent_spaces: AgentSpaces) -> None:
        """Reset the environment to see its state."""
        self._parts: dict[str, tuple[AnySpace, slice]] = {}
        declared, width = None, 0
        with trying(name, "state()"):
            try:
                env.reset(seed=0)
                shape = numpy.asarray(env.state(), float).shape
                declared = getattr(env, "state_space", None)
            except NotImplementedError:
                for agent, (space, _) in agent_spaces.items():
                    space = without_action_mask(space)
                    part = slice(width, width + spaces.flatdim(space))
                    self._parts[agent] = space, part
                    width = part.stop
                shape = (width,)
        self.space = spaces.Box(-numpy.inf, numpy.inf, shape, numpy.float32)
        if isinstance(declared, spaces.Box) and declared.shape == shape:
            self.space = declared

    def __call__(self, env: Any, observations: Mapping[str, Any]) -> Any:
        """The state now; it has the shape that it had first."""
        if not self._parts:
            return numpy.asarray(env.state()).reshape(self.space.shape)
        row = numpy.zeros(self.space.shape, numpy.float32)
        for agent in self._parts.keys() & observations.keys():
            space, part = self._parts[agent]
            flat: Any = spaces.flatten(space, observations[agent])
            row[part] = flat
        return row
