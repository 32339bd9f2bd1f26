"""Games: PettingZoo's two interfaces as one, a step that says who is to act next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["AecGame", "Answer", "Game", "ParallelGame"]


@dataclass(slots=True)
class Answer:
    """What a step or a reset gave; the mappings are by agent."""

    answered: Sequence[str]
    """Agents whose last action has its reward and its next observation now."""
    agents: Sequence[str]
    """Agents to act next; none: the episode is over."""
    observations: Mapping[str, Any]
    rewards: Mapping[str, Any]
    terminated: Mapping[str, Any]
    truncated: Mapping[str, Any]
    infos: Mapping[str, Mapping[str, Any]]
    state: Any = None
    """The global state, if it is asked for."""


class Game:
    """One environment with several agents."""

    in_turn: bool = False
    """Whether agents act one after the other; then an action is answered only in the next turn."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.state_of: Callable[[Any, Mapping[str, Any]], Any] | None = None
        """The global state, given the environment and all observations; None: it is not asked for.
        """

    def reset(self, seed: int | None) -> Answer:
        """Begin an episode."""
        raise TypeError(f"{type(self).__name__} must define reset")

    def step(self, actions: Mapping[str, Any]) -> Answer:
        """Let the agents act that are to act."""
        raise TypeError(f"{type(self).__name__} must define step")

    def render(self) -> Any:
        """A picture."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class ParallelGame(Game):
    """All live agents act at once."""

    def reset(self, seed: int | None) -> Answer:
        """Begin an episode."""
        observations, infos = self.env.reset(seed=seed)
        return self._with_state(Answer((), list(self.env.agents), observations, {}, {}, {}, infos))

    def step(self, actions: Mapping[str, Any]) -> Answer:
        """Let all live agents act."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        answered, agents = list(actions), list(self.env.agents)
        return self._with_state(
            Answer(answered, agents, observations, rewards, terminated, truncated, infos)
        )

    def _with_state(self, answer: Answer) -> Answer:
        if self.state_of is not None:
            answer.state = self.state_of(self.env, answer.observations)
        return answer


class AecGame(Game):
    """Agents act in turn; what the others do until an agent's next turn answers its action."""

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
        answer = Answer([], [], {}, {}, {}, {}, {})
        answered: list[str] = []
        answer.answered = answered
        if self.state_of is not None:
            # Agents that have ended are still there.
            seen = {agent: env.observe(agent) for agent in env.agents}
            answer.state = self.state_of(env, seen)
        columns: tuple[Any, ...] = (
            *(answer.observations, answer.rewards),
            *(answer.terminated, answer.truncated, answer.infos),
        )
        while env.agents:
            agent, left = env.agent_selection, len(env.agents)
            last = env.last()
            for column, value in zip(columns, last, strict=True):
                column[agent] = value
            _, _, terminated, truncated, _ = last
            if agent in waiting:
                waiting.discard(agent)
                answered.append(agent)
            if not (terminated or truncated):
                answer.agents = [agent]
                return answer
            env.step(None)
            if agent in env.agents and len(env.agents) >= left:
                raise ValueError(f"it keeps agent {agent!r} among its agents after its end")
        if waiting:
            raise ValueError(f"its episode is over, but agent {min(waiting)!r} has not ended")
        return answer
