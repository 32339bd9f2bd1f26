"""Several games at once, in which every agent of every game is a row of its module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

import numpy
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import create_empty_array

from rlplug.batch.nested import tree_map
from rlplug.envs.agents.games import Answer, Game
from rlplug.envs.agents.global_state import StateOf
from rlplug.envs.row_writer import row_writer
from rlplug.envs.saving import other_environments, pickled, unpickled
from rlplug.spaces import ACTION_MASK, AnySpace

__all__ = ["AgentRows", "AgentVector"]


class AgentRows:
    """What the agents of one module see and get: a row for each agent of each game.

    Rows are ordered by game. A row that is absent, or waits for its turn, keeps what it saw last.
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
        self.terminated = numpy.zeros(num, bool)
        self.truncated = numpy.zeros(num, bool)
        self.answered = numpy.zeros(num, bool)
        """Rows whose last action is answered."""
        self.turns = numpy.zeros(num, bool)
        """Rows that are to act next."""
        self.finals: list[tuple[int, dict[str, Any]]] = []
        """Last observations, with their masks, of rows that ended, in the order they ended."""
        self._write = row_writer(observation_space)
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
        """Forget the last step."""
        self.answered[:] = False
        self.terminated[:] = False
        self.truncated[:] = False
        self.finals = []

    def show(self, row: int, observation: Any, info: Mapping[str, Any], state: Any = None) -> None:
        """A row is to act on this observation."""
        self._write(self.seen, row, observation)
        if self.states is not None:
            self.states[row] = state
        self.turns[row] = True
        if info and ACTION_MASK in info and not self.observes_mask:
            self._open_mask(info[ACTION_MASK])[row] = info[ACTION_MASK]
        elif self.mask is not None and not self.observes_mask:
            self.mask[row] = 1

    def end(
        self,
        row: int,
        terminated: Any,
        truncated: Any,
        observation: Any,
        info: Mapping[str, Any],
        state: Any = None,
    ) -> None:
        """The episode of a row has ended with this observation."""
        self.terminated[row], self.truncated[row] = bool(terminated), bool(truncated)
        one = create_empty_array(self.space, 1)
        self._write(one, 0, observation)
        final: dict[str, Any] = {"observations": tree_map(lambda leaf: leaf[0], one)}
        mask = None
        if self.observes_mask:
            mask = final["observations"][ACTION_MASK]
        elif self.mask is not None:
            mask = numpy.ones_like(self.mask[row])
            if ACTION_MASK in info:
                mask[...] = info[ACTION_MASK]
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
        tree_map(
            lambda leaf, part: leaf.__setitem__(..., part), self.observations, saved["observations"]
        )
        if not self.observes_mask:
            self.mask = saved["mask"]
        self.turns[:] = saved["turns"]

    def _open_mask(self, one: Any) -> Any:
        if self.mask is None:
            self.mask = numpy.ones((self.num, *numpy.shape(one)), numpy.int8)
        return self.mask


class AgentVector(VectorEnv[Any, Any, Any]):
    """Steps several games, one after the other, and resets those that are over.

    Its spaces are Dicts by agent. `step_agents` takes the place of `step`: who acts changes.
    """

    def __init__(
        self,
        games: Sequence[Game],
        modules: Mapping[str, Sequence[str]],
        agent_spaces: Mapping[str, tuple[AnySpace, AnySpace]],
        *,
        num_games: int = 0,
    ) -> None:
        """Rows for all games, or for `num_games` that are elsewhere."""
        self.games = self.envs = list(games)
        self.num_envs = num = num_games or len(games)
        self.metadata = {
            **getattr(games[0].env, "metadata", {}),
            "autoreset_mode": AutoresetMode.SAME_STEP,
        }
        self.single_observation_space = spaces.Dict(
            {agent: pair[0] for agent, pair in agent_spaces.items()}
        )
        self.single_action_space = spaces.Dict(
            {agent: pair[1] for agent, pair in agent_spaces.items()}
        )
        self.timestep = 0
        """Steps of the run before those that are being taken, for messages."""
        self.in_turn = games[0].in_turn
        """Whether agents act one after the other."""
        self.rows = {
            module_id: AgentRows(agent_spaces[agents[0]][0], agents, num)
            for module_id, agents in modules.items()
        }
        self._parts = list(self.rows.values())
        self._places: list[dict[str, tuple[int, AgentRows, int]]] = [
            {
                agent: (number, rows, game * len(rows.agents) + place)
                for number, rows in enumerate(self._parts)
                for place, agent in enumerate(rows.agents)
            }
            for game in range(num)
        ]
        self._acting: list[Sequence[str]] = [() for _ in range(num)]
        self._ended: list[set[str]] = [set() for _ in range(num)]
        """Agents of each game whose episode ended before that of the game."""
        self.over = numpy.zeros(num, bool)
        """Games whose episode ended in the last step."""
        self.failed: tuple[int, str] | None = None
        """The game that raised, and in what."""

    def reset_games(self, seeds: Sequence[int | None]) -> None:
        """Begin an episode in every game."""
        self._forget_turns()
        for index, seed in enumerate(seeds):
            self._reset(index, seed)

    def step_agents(self, actions: Sequence[Sequence[Any]]) -> None:
        """Let the agents act that are to act, with the action of their row, by module."""
        self._forget_turns()
        for index, game in enumerate(self.games):
            try:
                answer = game.step(self._chosen(index, actions))
            except Exception:
                self.failed = (index, "step")
                raise
            self._stepped(index, answer)
            if not answer.agents:
                self._reset(index, None)

    def begin(self, state_of: StateOf | None) -> None:
        """Be ready to be reset; `state_of` gives the global state, if it is asked for."""
        for game in self.games:
            game.state_of = state_of

    def save(self, beside: Any) -> tuple[bytes, str]:
        """The games and what belongs to their step, or why they cannot be saved."""
        saved = pickled(([vars(game) for game in self.games], beside))
        return saved.pickled, saved.reason

    def restore(self, saved: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        states, beside = unpickled(saved, [vars(game) for game in self.games])
        if len(states) != len(self.games):
            raise other_environments()
        for game, state in zip(self.games, states, strict=True):
            vars(game).update(state)
        return beside

    def get_state(self) -> dict[str, Any]:
        """What the next step depends on beside the games; not a copy."""
        return {
            "rows": {name: rows.get_state() for name, rows in self.rows.items()},
            "acting": [list(agents) for agents in self._acting],
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        for name, rows in self.rows.items():
            rows.set_state(saved["rows"][name])
        self._acting = list(saved["acting"])
        self._ended = [set() for _ in self._ended]

    def reset(self, **options: Any) -> NoReturn:
        """Refused: see `reset_games`."""
        raise TypeError("games are reset with reset_games")

    def step(self, actions: Any) -> NoReturn:
        """Refused: see `step_agents`."""
        raise TypeError("games are stepped with step_agents")

    def close_extras(self, **kwargs: Any) -> None:
        """Close all games, also after one that raises."""
        with ExitStack() as stack:
            for game in self.games:
                stack.callback(game.close)

    def _reset(self, index: int, seed: int | None) -> None:
        try:
            answer = self.games[index].reset(seed)
        except Exception:
            self.failed = (index, "reset")
            raise
        self._begin(index, answer)

    def _forget_turns(self) -> None:
        for rows in self._parts:
            rows.begin_step()
            rows.turns[:] = False
        self.over[:] = False

    def _chosen(self, index: int, actions: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The actions of the agents of a game that are to act."""
        places, chosen = self._places[index], {}
        for agent in self._acting[index]:
            number, _, row = places[agent]
            chosen[agent] = actions[number][row]
        return chosen

    def _stepped(self, index: int, answer: Answer) -> None:
        """Take the answer of a step."""
        try:
            self._take(index, answer)
        except Exception:
            self.failed = (index, "step")
            raise
        if not answer.agents:
            self.over[index] = True

    def _begin(self, index: int, answer: Answer) -> None:
        """Take the answer of a reset."""
        try:
            if not answer.agents:
                raise ValueError("it has no agents after a reset")
            self._ended[index].clear()
            self._take(index, answer)
        except Exception:
            self.failed = (index, "reset")
            raise

    def _take(self, index: int, answer: Answer) -> None:
        """Put an answer into the rows of the agents."""
        places, observations, infos = self._places[index], answer.observations, answer.infos
        ended = 0
        try:
            for agent in answer.answered:
                _, rows, row = places[agent]
                rows.rewards[row] = answer.rewards[agent]
                rows.answered[row] = True
                terminated, truncated = answer.terminated[agent], answer.truncated[agent]
                if terminated or truncated:
                    ended += 1
                    info = infos.get(agent, _NOTHING)
                    rows.end(row, terminated, truncated, observations[agent], info, answer.state)
            for agent in answer.agents:
                _, rows, row = places[agent]
                rows.show(row, observations[agent], infos.get(agent, _NOTHING), answer.state)
        except KeyError as error:
            raise _lie(error.args[0], places, answer) from None
        except (TypeError, ValueError) as error:
            _refuse_values(answer)
            raise ValueError(f"for agent {agent!r}, {error}") from error
        self._acting[index] = answer.agents
        if ended or len(answer.agents) != len(answer.answered):
            self._refuse_lies(answer, self._ended[index])

    def _refuse_lies(self, answer: Answer, gone: set[str]) -> None:
        """Refuse agents that leave, stay or come back as they must not."""
        for agent in answer.agents:
            if agent in gone:
                raise ValueError(
                    f"agent {agent!r} is among its agents again after its end: an agent that has "
                    "ended must not come back before the next reset"
                )
        ended = (one for one in answer.answered if answer.terminated[one] or answer.truncated[one])
        gone.update(ended)
        if self.in_turn:
            return
        alive = set(answer.agents)
        if len(alive) < len(answer.agents):
            raise ValueError(f"an agent is twice among its agents ({', '.join(answer.agents)})")
        for agent in answer.answered:
            ended = answer.terminated[agent] or answer.truncated[agent]
            if ended and agent in alive:
                raise ValueError(f"it keeps agent {agent!r} among its agents after its end")
            if not (ended or agent in alive):
                raise ValueError(
                    f"agent {agent!r} left its agents, but was neither terminated nor truncated"
                )


_NOTHING: Mapping[str, Any] = {}


def _lie(agent: Any, places: Mapping[str, Any], answer: Answer) -> Exception:
    if agent not in places and agent in (*answer.agents, *answer.answered):
        return ValueError(
            f"it has an agent {agent!r} that is not among its possible_agents "
            f"({', '.join(map(str, places))})"
        )
    if agent not in places:
        return ValueError(f"its observation lacks {agent!r}")
    return ValueError(f"it gave no {_missing(agent, answer)} for agent {agent!r}")


def _refuse_values(answer: Answer) -> None:
    """Name the agent that was given what cannot be taken."""
    for agent in (*answer.answered, *answer.agents):
        if answer.observations.get(agent) is None:
            raise ValueError(f"it gave None as the observation of agent {agent!r}") from None
    for agent in answer.answered:
        shape = numpy.shape(answer.rewards[agent])
        if shape:
            raise ValueError(
                f"it gave agent {agent!r} a reward of shape {shape}, expected a number"
            ) from None


def _missing(agent: Any, answer: Answer) -> str:
    for name in ("rewards", "terminated", "truncated"):
        if agent in answer.answered and agent not in getattr(answer, name):
            return {"rewards": "reward", "terminated": "termination"}.get(name, "truncation")
    return "observation"
