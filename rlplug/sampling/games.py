"""Environments with several agents as a source: every agent is a row of its module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.envs.agents import AgentEnvironments, AgentRows, AgentVector
from rlplug.envs.agents.team import TeamRows
from rlplug.envs.saving import SavedEnvironments
from rlplug.feeds.feed import rows_of
from rlplug.sampling.checks import EnvironmentChecks, action_clipper
from rlplug.sampling.source import Rows, Source
from rlplug.spaces import ACTION_MASK

if TYPE_CHECKING:
    from rlplug.sampling.league import League

__all__ = ["GameRows", "GameSource"]


class GameRows(Rows):
    """The agents of one module, stored one by one or as teams."""

    def __init__(self, agents: AgentRows, team: TeamRows | None) -> None:
        kept: AgentRows | TeamRows = agents if team is None else team
        super().__init__(agents.num, kept.num, is_live=True)
        self.agents, self.team = agents, team
        self.stored_of = None if team is None else self._of_team
        self.copies: Any = None
        """The copy that acts for each row, -1 for the module itself; None without a league."""
        self.kept = kept
        """What is stored."""

    @property
    def current(self) -> dict[str, Any]:
        """The observations that are stored, and their mask."""
        current = {"observations": self.kept.observations}
        return current if self.kept.mask is None else {**current, ACTION_MASK: self.kept.mask}

    def _of_team(self, which: Any, columns: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The stored rows of those that acted, and their columns: of a team, one of all agents."""
        team: Any = self.team
        acted, turns = team.acted(columns), team.turns
        if turns.all():
            return None, acted
        which = numpy.flatnonzero(turns)
        return which, rows_of(acted, which)

    def ready(self, league: League | None, module_id: str) -> None:
        """Share out the turns; what the copies of a league do is not learned from."""
        agents = self.agents
        self.copies = None if league is None else league.copies_for(module_id)
        if league is not None and self.copies is not None:
            copies = numpy.where(agents.turns, self.copies, -1)
            agents.turns &= self.copies < 0
            self.others = [
                (league.policy(number, module_id), numpy.flatnonzero(copies == number))
                for number in numpy.unique(copies[copies >= 0]).tolist()
            ]
        self.seen, self.mask = agents.seen, agents.mask
        which = numpy.flatnonzero(agents.turns)
        self.turns = None if len(which) == agents.num else which

    def answer(self) -> None:
        """Take the answers of a step; those of rows with a copy are not learned from."""
        agents, kept, copies = self.agents, self.kept, self.copies
        self.restarted = numpy.array([row for row, _ in agents.finals], int)
        if copies is not None:
            agents.answered &= copies < 0
            agents.finals = [one for one in agents.finals if copies[one[0]] < 0]
        if self.team is not None:
            self.team.settle()
        self.outcome = {
            "rewards": kept.rewards,
            "terminated": kept.terminated,
            "truncated": kept.truncated,
        }
        self.answered = None if kept.answered.all() else numpy.flatnonzero(kept.answered)
        if kept.finals:
            rows, finals = zip(*kept.finals, strict=True)
            columns = {
                name: tree_map(lambda *parts: numpy.stack(parts), *(own[name] for own in finals))
                for name in sorted(set.intersection(*map(set, finals)))
            }
            self.finals = [(numpy.array(rows), columns)]


class GameSource(Source):
    """Steps games, all of them at once; a league lets copies act for some of their agents."""

    def __init__(self, environments: AgentEnvironments, league: League | None, during: str) -> None:
        super().__init__(environments, during)
        self._games: AgentVector = environments.vector
        self._league = league
        self.rows: dict[str, GameRows] = {
            module_id: GameRows(agents, environments.teams.get(module_id))
            for module_id, agents in self._games.rows.items()
        }
        self.in_step = not self._games.in_turn
        self.over: list[Any] = []
        """Games whose episode ended, in each step of the collection."""
        self._vectors = {name: own.vector for name, own in environments.modules.items()}
        self._clips = {
            name: action_clipper(own.single_action_space) for name, own in self._vectors.items()
        }
        self._chosen: dict[str, list[Any]] = {
            name: [None] * rows.num for name, rows in self.rows.items()
        }
        """The last action of each row, as games take it."""
        self._mask_checks = {
            name: self._checks(name, rows.num, rows.agents.describe)
            for name, rows in self.rows.items()
        }

    def checks_of(self, module_id: str) -> EnvironmentChecks:
        """The checks of what is stored of a module."""
        kept = self.rows[module_id].kept
        return self._checks(module_id, kept.num, kept.describe)

    def _checks(
        self, module_id: str, num: int, describe: Callable[[int], str]
    ) -> EnvironmentChecks:
        space = self._vectors[module_id].single_action_space
        name, during = self.checks.name, self.checks.during
        return EnvironmentChecks(name, num, space, lambda row: f" ({describe(row)})", during)

    def reset(self, seed: int) -> None:
        """Reset all games, each from a seed of its own."""
        self.timestep = 0
        with self.asking("reset"):
            self.environments.reset(seed)
        if self._league is not None:
            self._league.start()

    def turns(self, timestep: int, steps: int) -> Iterator[int]:
        """Step after each turn to act; yields the steps of the run so far."""
        self.over = []
        return super().turns(timestep, steps)

    def ready(self) -> None:
        """Look whose turn it is."""
        for name, rows in self.rows.items():
            rows.ready(self._league, name)
            if rows.mask is not None and rows.agents.turns.any():
                # Only those who act need a choice.
                waiting = ~rows.agents.turns
                self._mask_checks[name].check_mask(rows.mask, waiting, self.timestep)

    def send(self, module_id: str, which: Any, actions: Any) -> None:
        """Take the actions of these rows of a module, or of all."""
        clipped, each = self._clips[module_id](to_arrays(actions)), self._chosen[module_id]
        vector = self._vectors[module_id]
        chosen: list[Any]
        if isinstance(vector.single_action_space, spaces.Discrete):
            chosen = clipped.tolist()
        elif isinstance(clipped, numpy.ndarray):
            chosen = list(clipped)
        else:
            chosen = list(iterate(vector.action_space, clipped))
        rows = range(len(each)) if which is None else which.tolist()
        for row, action in zip(rows, chosen, strict=True):
            each[row] = action

    def recv(self) -> None:
        """Let the agents act whose turn it is."""
        league = self._league
        with self.asking("step"):
            self._games.step_agents(self._chosen, self.timestep)
        self.over.append(self._games.over.copy())
        if league is not None:
            league.earn()
        for rows in self.rows.values():
            rows.answer()
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
