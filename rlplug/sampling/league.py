"""Who plays in the episodes of a league: the current weights on one side, copies on the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from rlplug.envs.agents import AgentEnvironments
from rlplug.plugin import Acted, ActInput
from rlplug.sampling.agent_inputs import AgentInputs
from rlplug.sampling.league_pool import CURRENT
from rlplug.sampling.league_roster import Roster
from rlplug.seeding import derive

__all__ = ["League", "scores_of"]


class League:
    """Lets copies act for agents in the place of their modules, and hides those from learning.

    In each episode of each environment, the current weights play one of the sides; every other one
    is played by a copy that is drawn from the pool. Modules that are not trained play themselves.
    """

    def __init__(
        self,
        roster: Roster,
        environments: AgentEnvironments,
        *,
        seed: int,
        self_play: float = 0.0,
        optimal: bool = False,
    ) -> None:
        """In a share `self_play` of episodes, there is no copy."""
        self.roster, sides = roster, roster.sides
        self._self_play, self._optimal = self_play, optimal
        self._games = environments.games
        # Each process of a run has draws of its own.
        place = (environments.first,) if environments.first else ()
        self._random = numpy.random.default_rng(derive(seed, "league", *place))
        agents = list(environments.agents)
        members = [[agents.index(agent) for agent in side] for side in sides]
        self._members = members
        num, side_of = environments.num_envs, {}
        for number, side in enumerate(sides):
            side_of.update(dict.fromkeys(side, number))
        self._columns = {
            module_id: [agents.index(agent) for agent in rows.agents]
            for module_id, rows in self._games.rows.items()
        }
        self._side_of = {
            module_id: [side_of[agent] for agent in rows.agents]
            for module_id, rows in self._games.rows.items()
        }
        self._playing = numpy.full((num, len(sides)), CURRENT)
        """The copy that plays each side of each game."""
        self._earned = numpy.zeros((num, len(agents)))
        self._copy_of = {
            module_id: numpy.full(self._games.rows[module_id].num, CURRENT)
            for module_id in roster.modules
        }
        """The copy that acts for each row."""
        self._turns: dict[str, Any] = {}

    def refresh(self, timestep: int) -> None:
        """Add a copy to the pool if one is due."""
        self.roster.refresh(timestep)
        if self.roster.pool.retired:
            self.roster.pool.forget_retired(set(self._playing.reshape(-1).tolist()))

    def start(self) -> None:
        """All environments were reset."""
        self.roster.begin()
        self._earned[:] = 0
        self._draw_opponents(range(len(self._playing)))

    def hide(self) -> None:
        """Leave the turns to the current weights that are theirs."""
        for module_id, copies in self._copy_of.items():
            turns = self._games.rows[module_id].turns
            self._turns[module_id] = turns.copy()
            turns &= copies == CURRENT

    def act(self, inputs: Mapping[str, AgentInputs], timestep: int) -> None:
        """Let copies act whose turn it is, each for all its agents in one batch."""
        for module_id, copies in self._copy_of.items():
            turns = self._turns[module_id]
            for number in numpy.unique(copies[turns]).tolist():
                if number == CURRENT:
                    continue
                own = inputs[module_id]
                own.rows.turns[:] = turns & (copies == number)
                own.choose(self._choose(number, module_id), timestep)

    def stepped(self, inputs: Mapping[str, AgentInputs]) -> None:
        """Count the rewards of a step; what the agents of copies were answered is not learned."""
        games, num = self._games, len(self._playing)
        for module_id, rows in games.rows.items():
            earned = numpy.where(rows.answered, rows.rewards, 0.0)
            self._earned[:, self._columns[module_id]] += earned.reshape(num, -1)
            copies = self._copy_of.get(module_id)
            if copies is None:
                continue
            rows.answered &= copies == CURRENT
            ended = [row for row, _ in rows.finals if copies[row] != CURRENT]
            if ended:
                inputs[module_id].restart(ended)
                rows.finals = [one for one in rows.finals if copies[one[0]] == CURRENT]
        over = numpy.flatnonzero(games.over).tolist()
        if over:
            self._score(over)
            self._earned[over] = 0
            self._draw_opponents(over)

    def get_state(self) -> dict[str, Any]:
        """What is not the same in all processes of a run."""
        return {
            "random": self._random.bit_generator.state,
            "retired": self.roster.pool.get_retired(),
            "results": self.roster.get_results(),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state, after that of the roster."""
        self._random.bit_generator.state = saved["random"]
        self.roster.pool.set_retired(saved["retired"], self.roster.modules)
        self.roster.set_results(saved["results"])

    def get_episodes(self) -> dict[str, Any]:
        """What belongs to the episodes in progress; not a copy."""
        return {"playing": self._playing, "earned": self._earned}

    def set_episodes(self, saved: Mapping[str, Any] | None) -> None:
        """Go on with episodes in progress; None: they began without a league."""
        if saved is None:
            self.start()
            return
        self._playing, self._earned = saved["playing"], saved["earned"]
        for game in range(len(self._playing)):
            self._assign_rows(game)

    def _choose(self, number: int, module_id: str) -> Callable[[ActInput], Acted]:
        module = self.roster.pool.find(number).modules[module_id]
        return module.forward_inference if self._optimal else module.forward_exploration

    def _draw_opponents(self, games: Sequence[int]) -> None:
        """Draw who plays the next episodes."""
        random, trained = self._random, self.roster.trained
        for game in games:
            self._playing[game] = CURRENT
            if random.random() >= self._self_play:
                learner = trained[int(random.integers(len(trained)))]
                for side in trained:
                    if side != learner:
                        self._playing[game, side] = self.roster.pool.draw(random)
            self._assign_rows(game)

    def _assign_rows(self, game: int) -> None:
        for module_id, copies in self._copy_of.items():
            sides = self._side_of[module_id]
            first = game * len(sides)
            copies[first : first + len(sides)] = self._playing[game, sides]

    def _score(self, over: Sequence[int]) -> None:
        """Count how episodes ended."""
        trained = self.roster.trained
        for game in over:
            playing = self._playing[game]
            earned = [self._earned[game, members].mean() for members in self._members]
            copies = [side for side in trained if playing[side] != CURRENT]
            for side in copies:
                (learner,) = set(trained) - set(copies)
                score = scores_of(earned[learner], earned[side])
                self.roster.add_result(int(playing[side]), float(score))


def scores_of(own: Any, other: Any) -> Any:
    """1 where the own return is larger, 0.5 where both are equal, else 0."""
    difference = numpy.subtract(own, other)
    return numpy.where(numpy.abs(difference) < _EQUAL, 0.5, difference > 0)


_EQUAL = 1e-9
