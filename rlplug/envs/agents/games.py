"""Games: PettingZoo's two interfaces as one, a step that says who is to act next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlplug.envs.sync import refuse_no_boolean

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
        observations, infos = _mappings("reset", _OF_RESET, self.env.reset(seed=seed))
        agents = list(self.env.agents or ())
        return self._with_state(Answer((), agents, observations, {}, {}, {}, infos))

    def step(self, actions: Mapping[str, Any]) -> Answer:
        """Let all live agents act."""
        parts = _mappings("step", _OF_STEP, self.env.step(actions))
        for name, ends in zip(_OF_STEP[2:4], parts[2:4], strict=True):
            for agent, value in ends.items():
                _refuse_no_boolean(name, agent, value)
        return self._with_state(Answer(list(actions), list(self.env.agents or ()), *parts))

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
            if agent not in env.agents:
                raise ValueError(
                    f"its agent_selection is {agent!r}, which is not among its agents "
                    f"({', '.join(map(str, env.agents))})"
                )
            try:
                last = env.last()
            except KeyError:
                _refuse_lacking(env, agent)
                raise
            for column, value in zip(columns, last, strict=True):
                column[agent] = value
            _, _, terminated, truncated, _ = last
            _refuse_no_boolean("terminations", agent, terminated)
            _refuse_no_boolean("truncations", agent, truncated)
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


_OF_RESET = ("observations", "infos")
_OF_STEP = ("observations", "rewards", "terminations", "truncations", "infos")


def _mappings(method: str, names: Sequence[str], returned: Any) -> tuple[Any, ...]:
    """What a method returned, refused if it is not a mapping by agent for each name."""
    if not isinstance(returned, tuple | list):
        raise _other(method, names, _kind(returned))
    if len(returned) != len(names):
        raise _other(method, names, f"{len(returned)} values")
    for name, part in zip(names, returned, strict=True):
        if not isinstance(part, (dict, Mapping)):
            raise _other(method, names, f"{_kind(part)} as {name}")
    return tuple(returned)


def _refuse_no_boolean(name: str, agent: str, value: Any) -> None:
    # Most often it is one: there is no text to be made then.
    if type(value) is not bool:
        refuse_no_boolean(f"{name}[{agent!r}]", value)


def _other(method: str, names: Sequence[str], found: str) -> ValueError:
    wanted = f"{', '.join(names)}: {len(names)} dicts by agent"
    return ValueError(f"its {method} returned {found}, expected {wanted}")


def _kind(value: Any) -> str:
    return "None" if value is None else f"one {type(value).__name__}"


def _refuse_lacking(env: Any, agent: str) -> None:
    """Name what an environment has for other agents, but not for the one whose turn it is."""
    for name in ("_cumulative_rewards", "terminations", "truncations", "infos"):
        if agent not in getattr(env, name, {agent: None}):
            raise ValueError(f"its {name} lack agent {agent!r}, whose turn it is") from None
