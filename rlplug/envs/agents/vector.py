"""Several games at once, in which every agent of every game is a row of its module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.envs.agents.games import AgentSpaces, Answer, Game, GlobalState, HeldGames
from rlplug.envs.agents.rows import AgentRows
from rlplug.envs.saving import SavedEnvironments, joined, parts_of
from rlplug.envs.sync import LOOKS, check_outcome
from rlplug.envs.workers.processes import Workers
from rlplug.spaces import shape_mismatch

__all__ = ["AgentVector"]


class AgentVector:
    """Steps several games, all of them at once, and resets those that are over.

    Its spaces are Dicts by agent. The games are held in this process or, where `start` puts
    `num_games` there, in worker processes; the one given is like those then.
    """

    def __init__(
        self,
        games: Sequence[Game],
        modules: Mapping[str, Sequence[str]],
        agent_spaces: AgentSpaces,
        num_games: int,
        start: Callable[[GlobalState | None], Workers] | None = None,
    ) -> None:
        self.envs = [game.env for game in games]
        self.num_envs = num = num_games
        self.metadata = getattr(self.envs[0], "metadata", {})
        self.unwrapped = self
        pairs = agent_spaces.items()
        self.single_observation_space = spaces.Dict({agent: pair[0] for agent, pair in pairs})
        self.single_action_space = spaces.Dict({agent: pair[1] for agent, pair in pairs})
        self.in_turn = games[0].in_turn
        """Whether agents act one after the other."""
        self.rows = {
            module_id: AgentRows(agent_spaces[agents[0]][0], agents, num)
            for module_id, agents in modules.items()
        }
        self._places: list[dict[str, tuple[str, AgentRows, int]]] = [
            {
                agent: (module_id, rows, game * len(rows.agents) + place)
                for module_id, rows in self.rows.items()
                for place, agent in enumerate(rows.agents)
            }
            for game in range(num)
        ]
        self._acting: list[Sequence[str]] = [() for _ in range(num)]
        self.over = numpy.zeros(num, bool)
        """Games whose episode ended in the last step."""
        self._start, self._looks = start, LOOKS
        self._taking: tuple[int, str] | None = None
        self._here = HeldGames(games=games)
        self._held: HeldGames | Workers = self._here

    @property
    def failed(self) -> tuple[int, str] | None:
        """The game that raised, and in what."""
        return self._taking or self._here.failed

    def begin(self, state_of: GlobalState | None) -> None:
        """Be ready to be reset; `state_of` gives the global state, if it is asked for."""
        self._here.observe_state(state_of)
        if self._start is not None:
            self._held = self._start(state_of)

    def reset_games(self, seeds: Sequence[int | None]) -> None:
        """Begin an episode in every game."""
        self._take_all("reset", seeds)

    def step_agents(self, actions: Mapping[str, Sequence[Any]], timestep: int) -> None:
        """Let the agents act that are to act, with the action of their row, by module.

        `timestep` is the step of the run, for messages.
        """
        chosen = []
        for places, acting in zip(self._places, self._acting, strict=True):
            of_game = {}
            for agent in acting:
                module_id, _, row = places[agent]
                of_game[agent] = actions[module_id][row]
            chosen.append(of_game)
        self._held.timestep = timestep
        self._take_all("step", chosen)
        self._looks = self._looks and self._looks - 1

    def save(self, beside: Any) -> SavedEnvironments:
        """The games and what belongs to their step, or why they cannot be saved."""
        own = {name: rows.get_state() for name, rows in self.rows.items()}, self._acting
        return joined(self._held.call("save"), (own, beside))

    def restore(self, saved: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        games, ((of_rows, self._acting), beside) = parts_of(saved, self.num_envs)
        self._held.call("restore", games)
        for name, rows in self.rows.items():
            rows.set_state(of_rows[name])
        return beside

    def close(self) -> None:
        """Close all games, also after one that raises."""
        with ExitStack() as stack:
            for held in {self._here, self._held}:
                stack.callback(held.close)

    def _take_all(self, method: str, arguments: Sequence[Any]) -> None:
        """Have all games do something, and put their answers into the rows of the agents."""
        for rows in self.rows.values():
            rows.begin_step()
        self.over[:] = False
        for index, answers in enumerate(self._held.call(method, arguments)):
            self._taking = index, method
            for answer in answers:
                self._take(index, answer)
            self.over[index] = len(answers) > 1
        self._taking = None

    def _take(self, index: int, answer: Answer) -> None:
        """Put an answer into the rows of the agents."""
        places, observations, infos = self._places[index], answer.observations, answer.infos
        if self._looks:
            self._check(answer, places)
        ended = 0
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
        self._acting[index] = answer.agents
        if ended or len(answer.agents) != len(answer.answered):
            self._refuse_others(answer)

    def _check(self, answer: Answer, places: Mapping[str, tuple[str, AgentRows, int]]) -> None:
        """Refuse what is not there, or of another form, in one of the first steps."""
        for agent in (*answer.answered, *answer.agents):
            if agent not in places:
                raise ValueError(f"agent {agent!r} is not among its possible_agents")
            if answer.observations.get(agent) is None:
                raise ValueError(f"it gave no observation for agent {agent!r}")
            mismatch = shape_mismatch(places[agent][1].space, answer.observations[agent])
            if mismatch:
                raise ValueError(f"it gave agent {agent!r} an observation {mismatch}")
        for agent in answer.answered:
            for name in ("rewards", "terminated", "truncated"):
                if agent not in getattr(answer, name):
                    raise ValueError(f"it gave no {name} for agent {agent!r}")
            ends = answer.terminated[agent], answer.truncated[agent]
            check_outcome(answer.rewards[agent], *ends, of=f"[{agent!r}]")

    def _refuse_others(self, answer: Answer) -> None:
        """Refuse agents that act at once, and leave without an end or stay after it."""
        for agent in () if self.in_turn else answer.answered:
            ended = answer.terminated[agent] or answer.truncated[agent]
            if ended == (agent in answer.agents):
                said = "has ended and is" if ended else "has not ended and is not"
                raise ValueError(f"agent {agent!r} {said} among its agents")


_NOTHING: Mapping[str, Any] = {}
