"""Environments with several agents as a source: every agent is a row of its module."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.envs.agents import AgentEnvironments, AgentRows, AgentVector
from rlplug.envs.agents.team import TeamRows
from rlplug.envs.saving import SavedEnvironments
from rlplug.feeds.feed import rows_of
from rlplug.plugin import Acted, ActInput
from rlplug.sampling.checks import EnvironmentChecks, action_clipper
from rlplug.sampling.league import CURRENT, League
from rlplug.sampling.source import Rows, Source
from rlplug.spaces import ACTION_MASK

__all__ = ["GameRows", "GameSource"]


class GameRows(Rows):
    """The agents of one module, stored one by one or as teams."""

    def __init__(self, agents: AgentRows, team: TeamRows | None) -> None:
        super().__init__(agents.num, agents.num if team is None else team.num)
        self.agents, self.team, self.is_live = agents, team, True
        self.kept: AgentRows | TeamRows = agents if team is None else team
        """What is stored."""

    @property
    def current(self) -> dict[str, Any]:
        """The observations that are stored, and their mask."""
        current = {"observations": self.kept.observations}
        return current if self.kept.mask is None else {**current, ACTION_MASK: self.kept.mask}

    def describe(self, row: int) -> str:
        """The agent to act in a row of those whose turn it is, for messages."""
        agent = row if self.turns is None else int(self.turns[row])
        return f" ({self.agents.describe(agent)})"

    def stored_of(self, which: Any, columns: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The stored rows of those that acted, and their columns: of a team, one of all agents."""
        if self.team is None:
            return which, columns
        acted, turns = self.team.acted(columns), self.team.turns
        if turns.all():
            return None, acted
        which = numpy.flatnonzero(turns)
        return which, rows_of(acted, which)

    def ready(self, copies: Any, policy: Callable[[int], Callable[[ActInput], Acted]]) -> None:
        """Share out the turns: those of rows with a copy are acted for by its policy."""
        agents, self.others = self.agents, []
        if copies is not None:
            turns = agents.turns.copy()
            agents.turns &= copies == CURRENT
            for number in numpy.unique(copies[turns]).tolist():
                if number != CURRENT:
                    which = numpy.flatnonzero(turns & (copies == number))
                    self.others.append((policy(number), which))
        self.seen, self.mask = agents.seen, agents.mask
        which = numpy.flatnonzero(agents.turns)
        self.turns = None if len(which) == agents.num else which

    def answer(self, copies: Any) -> None:
        """Take the answers of a step; those of rows with a copy are not learned from."""
        agents, kept = self.agents, self.kept
        self.restarted = numpy.array([row for row, _ in agents.finals], int)
        if copies is not None:
            agents.answered &= copies == CURRENT
            agents.finals = [one for one in agents.finals if copies[one[0]] == CURRENT]
        if self.team is not None:
            self.team.settle()
        self.rewards = kept.rewards
        self.terminated, self.truncated = kept.terminated, kept.truncated
        self.answered = None if kept.answered.all() else numpy.flatnonzero(kept.answered)
        self.finals = []
        if kept.finals:
            rows, finals = zip(*kept.finals, strict=True)
            columns = {
                name: tree_map(lambda *parts: numpy.stack(parts), *(own[name] for own in finals))
                for name in sorted(set.intersection(*map(set, finals)))
            }
            self.finals.append((numpy.array(rows), columns))


class GameSource(Source):
    """Steps games, all of them at once; a league lets copies act for some of their agents."""

    is_watched = False

    def __init__(self, environments: AgentEnvironments, league: League | None, during: str) -> None:
        super().__init__(environments, during)
        self._games: AgentVector = environments.vector
        self._league = league
        self.rows: dict[str, GameRows] = {
            module_id: GameRows(agents, environments.teams.get(module_id))
            for module_id, agents in self._games.rows.items()
        }
        self.in_step = not self._games.in_turn
        self.over = self._games.over
        """Games whose episode ended in the last step."""
        self._during = during
        self._parts = {name: own.vector for name, own in environments.modules.items()}
        self._clip = {
            name: action_clipper(vector.single_action_space) for name, vector in self._parts.items()
        }
        self._chosen: dict[str, list[Any]] = {
            name: [None] * rows.num for name, rows in self.rows.items()
        }
        """The last action of each row, as games take it."""
        self._mask_checks = {
            name: self._checks_of(name, rows.num, rows.describe) for name, rows in self.rows.items()
        }

    def checks_of(self, module_id: str) -> EnvironmentChecks:
        """The checks of what is stored of a module."""
        rows = self.rows[module_id]
        return self._checks_of(module_id, rows.stored, lambda row: f" ({rows.kept.describe(row)})")

    def _checks_of(
        self, module_id: str, num: int, which: Callable[[int], str]
    ) -> EnvironmentChecks:
        space = self._parts[module_id].single_action_space
        return EnvironmentChecks(self.environments.name, num, space, which, self._during)

    def reset(self, seed: int) -> None:
        """Reset all games, each from a seed of its own."""
        self.timestep, self.doing = 0, "reset"
        self.environments.reset(seed)
        self.doing = ""
        if self._league is not None:
            self._league.start()

    def ready(self) -> None:
        """Look whose turn it is."""
        for name, rows in self.rows.items():
            league = self._league
            if league is None:
                rows.ready(None, _nobody)
            else:
                rows.ready(league.copies.get(name), league.policies(name))
            if rows.mask is not None and (rows.turns is None or len(rows.turns)):
                mask = rows.mask if rows.turns is None else rows.mask[rows.turns]
                self._mask_checks[name].check_mask(mask, None, self.timestep)

    def send(self, module_id: str, which: Any, actions: Any) -> None:
        """Take the actions of these rows of a module, or of all."""
        clipped, each = self._clip[module_id](to_arrays(actions)), self._chosen[module_id]
        vector = self._parts[module_id]
        chosen: list[Any]
        if isinstance(vector.single_action_space, spaces.Discrete):
            chosen = clipped.tolist()
        elif isinstance(clipped, numpy.ndarray):
            chosen = list(clipped)
        else:
            chosen = list(iterate(vector.action_space, clipped))
        if which is None:
            each[:] = chosen
        else:
            for row, action in zip(which.tolist(), chosen, strict=True):
                each[row] = action

    def recv(self, max_wait: float | None = None) -> None:
        """Let the agents act whose turn it is."""
        league = self._league
        self.doing, began = "step", perf_counter()
        self._games.step_agents(self._chosen, self.timestep)
        self.step_seconds += perf_counter() - began
        self.doing = ""
        if league is not None:
            league.earn()
        for name, rows in self.rows.items():
            rows.answer(None if league is None else league.copies.get(name))
        if league is not None:
            league.begin_episodes()

    def save(self, beside: Any) -> SavedEnvironments:
        """The games and what belongs to their step, or why they cannot be saved."""
        league = None if self._league is None else self._league.get_episodes()
        return self._games.save((league, beside))

    def restore(self, pickled: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        league, beside = self._games.restore(pickled)
        if self._league is not None:
            self._league.set_episodes(league)
        return beside


def _nobody(number: int) -> Any:
    raise KeyError(number)
