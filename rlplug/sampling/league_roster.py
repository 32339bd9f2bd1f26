"""Who may play in a league: its sides, and the pool that all processes of a run have alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rlplug.config.league_section import LeagueSection
from rlplug.plugin import Module
from rlplug.sampling.league_pool import Pool

__all__ = ["Results", "Roster"]

Results: TypeAlias = list[tuple[int, float]]
"""Number of the copy and score of the current weights, of each episode."""


class Roster:
    """The sides of a league, and its pool.

    Results of a process are part of its win rates at once: opponents are drawn by them. `settle`
    brings together those of several learners, so that their pools stay the same. What learners tell
    their runners, `hear` takes over.
    """

    def __init__(
        self,
        section: LeagueSection,
        agents: Mapping[str, str],
        modules: Mapping[str, Module],
        sides: Sequence[Sequence[str]],
    ) -> None:
        """`agents` has the module of each; `modules` are those that are trained, and copied."""
        self.pool = Pool(section)
        self.sides = sides
        """The agents of each side."""
        self.agents, self.modules = agents, modules
        self.trained = [
            number
            for number, side in enumerate(sides)
            if any(agents[agent] in modules for agent in side)
        ]
        """Sides that have something to learn, and may be played by copies."""
        self.gather: Callable[[Results], Sequence[Results]] | None = None
        """Of several learners, gives the results of each."""
        self._results: Results = []
        """Results of this process since the last `settle` or `take_results`."""
        self._settled = self.pool.get_ratings()
        self._hears = False

    def begin(self) -> None:
        """Have a first copy."""
        if not self.pool.copies:
            self._add(0)

    def refresh(self, timestep: int) -> None:
        """Add a copy to the pool if one is due."""
        if self._hears:
            return
        self.settle()
        if self.pool.is_due(timestep):
            self._add(timestep)

    def add_result(self, number: int, score: float) -> None:
        """An episode against a copy has ended: 1 for a win, 0.5 for a draw, 0 for a loss."""
        self.pool.add_result(number, score)
        self._results.append((number, score))

    def settle(self) -> None:
        """Rate by the results of all learners."""
        results = self.take_results()
        if self.gather is not None:
            self.pool.set_ratings(self._settled)
            for own in self.gather(results):
                for number, score in own:
                    self.pool.add_result(number, score)
            self._settled = self.pool.get_ratings()

    def take_results(self) -> Results:
        """The results of this process since the last call."""
        results, self._results = self._results, []
        return results

    def tell(self, known: set[int]) -> dict[str, Any]:
        """What `hear` takes over, without the weights of copies that are known there."""
        return {**self.pool.get_state(known), "numbers": [one.number for one in self.pool.copies]}

    def hear(self, told: Mapping[str, Any]) -> None:
        """Have the pool that another process decides on."""
        self._hears = True
        pool = self.pool
        known = {one.number: one for one in (*pool.retired, *pool.copies)}
        pool.set_state(told, self.modules)
        known |= {one.number: one for one in pool.copies}
        pool.copies = [known.pop(number) for number in told["numbers"]]
        pool.retired = list(known.values())

    def get_state(self) -> dict[str, Any]:
        """The pool, as it is in all learners."""
        state = self.pool.get_state()
        return state if self.gather is None else {**state, **self._settled}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.pool.set_state(saved, self.modules)
        self._settled = self.pool.get_ratings()

    def get_results(self) -> Results:
        """Results of this process that are not settled; not a copy."""
        return self._results

    def set_results(self, saved: Sequence[tuple[int, float]]) -> None:
        """Restore those."""
        self._results = []
        if self.gather is not None:
            for number, score in saved:
                self.add_result(number, score)

    def _add(self, timestep: int) -> None:
        self.pool.add(timestep, self.modules)
        self._settled = self.pool.get_ratings()
