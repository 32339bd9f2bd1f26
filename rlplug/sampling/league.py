"""A league: which copy acts for which rows, the pool of copies, win rates and Elo ratings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy

from rlplug.config.sections import LeagueSection
from rlplug.envs.agents import AgentEnvironments
from rlplug.plugin import Acted, ActInput, Module
from rlplug.seeding import derive

__all__ = ["CURRENT", "League", "Results", "Roster", "scores_of"]

CURRENT = -1
"""Stands for the current weights where numbers of copies stand."""

WINDOW = 100
"""Episodes that win rates are of; no copy is added by its win rate before as many."""

FIRST_ELO, ELO_STEP = 1200.0, 16.0
"""The first rating, and how far a surprising win moves it."""

_UNKNOWN = 8
"""Draws that a prioritized opponent is taken to have played before: few episodes tell little."""

Results: TypeAlias = list[tuple[int, float]]
"""Number of the copy and score of the current weights, of each episode."""


@attrs.define
class WinRate:
    """The share of the last episodes that were won, draws counting half."""

    rate: float = 0.5
    episodes: int = 0

    def add(self, score: float) -> None:
        """Add an episode: 1 for a win, 0.5 for a draw, 0 for a loss."""
        self.episodes += 1
        self.rate += (score - self.rate) / min(self.episodes, WINDOW)


@attrs.define(eq=False)
class Copy:
    """The modules of a league as they were at a step."""

    number: int
    step: int
    elo: float
    modules: Mapping[str, Module]
    win_rates: Mapping[int, float]
    """Win rate against each older copy of the pool, when this one was made."""


class Roster:
    """Who may play in a league: the sides, and a pool of the newest copies with their ratings.

    Ratings change in `settle`, between collections, so that all learners of a run have the same:
    opponents are drawn by them. What learners tell their runners, `hear` takes over.
    """

    def __init__(
        self,
        section: LeagueSection,
        agents: Mapping[str, str],
        modules: Mapping[str, Module],
        sides: Sequence[Sequence[str]],
    ) -> None:
        """`agents` has the module of each; `modules` are those that are trained, and copied."""
        self.sides, self.agents, self.modules = sides, agents, modules
        self.trained = [
            number
            for number, side in enumerate(sides)
            if any(agents[agent] in modules for agent in side)
        ]
        """Sides that have something to learn, and may be played by copies."""
        self.known: dict[int, Copy] = {}
        """The copies of the pool, and removed ones that go on to act in episodes in progress."""
        self.elo = FIRST_ELO
        """Rating of the current weights."""
        self.recent = WinRate()
        """Of the current weights, since the last copy."""
        self.against: dict[int, WinRate] = {}
        """The same by copy of the pool, since there is that copy."""
        self.history: list[tuple[int, float]] = []
        """Step and rating of all copies so far."""
        self.gather: Callable[[Results], Sequence[Results]] | None = None
        """Of several learners, gives the results of each."""
        self.results: Results = []
        """Those of this process that are not settled."""
        self._section, self._hears = section, False

    @property
    def copies(self) -> list[Copy]:
        """Those that opponents are drawn from, the oldest first."""
        return [self.known[number] for number in sorted(self.against)]

    def begin(self) -> None:
        """Have a first copy."""
        if not self.history:
            self._add(0)

    def refresh(self, timestep: int, playing: Collection[int] = ()) -> None:
        """Add a copy to the pool if one is due; removed ones are kept while they play."""
        self.known = {n: one for n, one in self.known.items() if n in self.against or n in playing}
        if self._hears:
            return
        self.settle()
        section, recent = self._section, self.recent
        is_due = 0 < section.every <= timestep - self.history[-1][0]
        if is_due or (recent.episodes >= WINDOW and recent.rate >= section.win_rate > 0):
            self._add(timestep)

    def draw(self, random: numpy.random.Generator) -> int:
        """The number of an opponent."""
        numbers = sorted(self.against)
        if self._section.draw == "latest":
            return numbers[-1]
        if self._section.draw == "uniform":
            return numbers[int(random.integers(len(numbers)))]
        # Prioritized fictitious self-play, with the weights of AlphaStar: (1 - win rate)².
        known = [self.against[number] for number in numbers]
        episodes = numpy.array([min(one.episodes, WINDOW) for one in known])
        rates = numpy.array([one.rate for one in known])
        chances = (1 - (rates * episodes + 0.5 * _UNKNOWN) / (episodes + _UNKNOWN)) ** 2
        return numbers[int(random.choice(len(numbers), p=chances / chances.sum()))]

    def settle(self) -> None:
        """Rate by the results of all learners."""
        results = self.take_results()
        for own in (results,) if self.gather is None else self.gather(results):
            for number, score in own:
                difference = self.history[number][1] - self.elo
                self.elo += ELO_STEP * (score - 1 / (1 + 10 ** (difference / 400)))
                self.recent.add(score)
                if number in self.against:
                    self.against[number].add(score)

    def take_results(self) -> Results:
        """The results of this process since the last call."""
        results, self.results = self.results, []
        return results

    def tell(self, known: Collection[int]) -> dict[str, Any]:
        """What `hear` takes over, without the copies that are known there."""
        told = self.get_state()
        return {**told, "copies": [one for one in told["copies"] if one["number"] not in known]}

    def hear(self, told: Mapping[str, Any]) -> None:
        """Have the pool that another process decides on."""
        self._hears = True
        self.set_state(told)

    def win_rate_of(self, number: int, other: int) -> float:
        """Win rate of a copy, or the current weights, against another one; nan if unknown."""
        if number == other:
            return 0.5
        if CURRENT in (number, other):
            known = self.against[max(number, other)]
            rate = known.rate if known.episodes else numpy.nan
        else:
            rate = self.known[max(number, other)].win_rates.get(min(number, other), numpy.nan)
        is_newer = number == CURRENT or (other != CURRENT and number > other)
        return rate if is_newer else 1 - rate

    def metrics(self) -> dict[str, float]:
        """`league/elo`, `league/win_rate` and the sizes."""
        metrics = {
            "league/elo": self.elo,
            "league/pool": float(len(self.against)),
            "league/copies": float(len(self.history)),
        }
        return metrics | ({"league/win_rate": self.recent.rate} if self.recent.episodes else {})

    def get_state(self) -> dict[str, Any]:
        """The pool and its ratings, as they are in all learners."""
        return {
            "copies": self.states_of(sorted(self.against)),
            "history": [list(pair) for pair in self.history],
            "elo": self.elo,
            "recent": [self.recent.rate, self.recent.episodes],
            "against": [[n, one.rate, one.episodes] for n, one in self.against.items()],
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state; copies that are known stay so."""
        self.add_copies(saved["copies"])
        self.history = [(step, elo) for step, elo in saved["history"]]
        self.elo, self.recent = saved["elo"], WinRate(*saved["recent"])
        self.against = {n: WinRate(rate, episodes) for n, rate, episodes in saved["against"]}

    def states_of(self, numbers: Collection[int]) -> list[dict[str, Any]]:
        """Copies as they are saved; weights are not copied, since they never change."""
        states = []
        for number in numbers:
            own = attrs.asdict(self.known[number], recurse=False)
            own["modules"] = {name: one.state_dict() for name, one in own["modules"].items()}
            own["win_rates"] = [list(pair) for pair in own["win_rates"].items()]
            states.append(own)
        return states

    def add_copies(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Have copies as they were saved."""
        for one in saved:
            modules = {name: _frozen(self.modules[name]) for name in one["modules"]}
            for name, module in modules.items():
                module.load_state_dict(one["modules"][name])
            rates = dict(map(tuple, one["win_rates"]))
            self.known[one["number"]] = Copy(**{**one, "modules": modules, "win_rates": rates})

    def _add(self, step: int) -> None:
        """Add a copy of the modules, which becomes the latest one."""
        rates = {number: one.rate for number, one in self.against.items() if one.episodes}
        modules = {name: _frozen(module) for name, module in self.modules.items()}
        number = len(self.history)
        self.known[number] = Copy(number, step, self.elo, modules, rates)
        self.history.append((step, self.elo))
        self.recent = WinRate()
        self.against[number] = WinRate()
        for oldest in sorted(self.against)[: -self._section.pool]:
            del self.against[oldest]


class League:
    """Lets copies act for agents in the place of their modules.

    In each episode of each environment, the current weights play one of the sides; every other one
    is played by a copy that is drawn from the pool. Modules that are not trained play themselves.
    In a share `self_play` of episodes, there is no copy.
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
        self.roster, self._self_play, self._optimal = roster, self_play, optimal
        self._games = games = environments.vector
        # Each process of a run has draws of its own.
        place = (environments.first,) if environments.first else ()
        self._random = numpy.random.default_rng(derive(seed, "league", *place))
        side_of = {agent: number for number, side in enumerate(roster.sides) for agent in side}
        self._sides_of = {
            name: [side_of[agent] for agent in rows.agents] for name, rows in games.rows.items()
        }
        """The side of each agent of a module."""
        shape = environments.num_envs, len(roster.sides)
        self._playing = numpy.full(shape, CURRENT)
        """The copy that plays each side of each game."""
        self._earned = numpy.zeros(shape)
        """What the agents of each side have earned in the episode so far, their mean."""

    def copies_for(self, module_id: str) -> Any:
        """The copy that acts for each row of a module; None if it is never played by copies."""
        if module_id not in self.roster.modules:
            return None
        return self._playing[:, self._sides_of[module_id]].reshape(-1)

    def policy(self, number: int, module_id: str) -> Callable[[ActInput], Acted]:
        """How a copy acts for a module."""
        module = self.roster.known[number].modules[module_id]
        return module.forward_inference if self._optimal else module.forward_exploration

    def refresh(self, timestep: int) -> None:
        """Add a copy to the pool if one is due."""
        self.roster.refresh(timestep, set(self._playing.ravel().tolist()))

    def start(self) -> None:
        """All environments were reset."""
        self.roster.begin()
        self._earned[:] = 0
        self._draw_opponents(range(len(self._playing)))

    def earn(self) -> None:
        """Count the rewards of a step."""
        for name, rows in self._games.rows.items():
            earned = numpy.where(rows.answered, rows.rewards, 0.0).reshape(len(self._earned), -1)
            for place, side in enumerate(self._sides_of[name]):
                self._earned[:, side] += earned[:, place] / len(self.roster.sides[side])

    def begin_episodes(self) -> None:
        """Score the episodes that ended in a step, and draw who plays the next ones."""
        over = numpy.flatnonzero(self._games.over).tolist()
        for game in over:
            playing, earned = self._playing[game], self._earned[game]
            opponents = [side for side in self.roster.trained if playing[side] != CURRENT]
            for side in opponents:
                (learner,) = set(self.roster.trained) - set(opponents)
                score = float(scores_of(earned[learner], earned[side]))
                self.roster.results.append((int(playing[side]), score))
        self._earned[over] = 0
        self._draw_opponents(over)

    def get_state(self) -> dict[str, Any]:
        """What is not the same in all processes of a run."""
        roster = self.roster
        return {
            "random": self._random.bit_generator.state,
            "retired": roster.states_of(roster.known.keys() - roster.against.keys()),
            "results": roster.results,
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state, after that of the roster."""
        self._random.bit_generator.state = saved["random"]
        self.roster.add_copies(saved["retired"])
        self.roster.results = [(number, score) for number, score in saved["results"]]

    def get_episodes(self) -> dict[str, Any]:
        """What belongs to the episodes in progress; not a copy."""
        return {"playing": self._playing, "earned": self._earned}

    def set_episodes(self, saved: Mapping[str, Any] | None) -> None:
        """Go on with episodes in progress; None: they began without a league."""
        if saved is None:
            self.start()
        else:
            self._playing, self._earned = saved["playing"], saved["earned"]

    def _draw_opponents(self, games: Sequence[int]) -> None:
        random, trained = self._random, self.roster.trained
        for game in games:
            self._playing[game] = CURRENT
            if random.random() >= self._self_play:
                learner = trained[int(random.integers(len(trained)))]
                for side in trained:
                    if side != learner:
                        self._playing[game, side] = self.roster.draw(random)


def _frozen(module: Module) -> Module:
    """A copy that is not trained."""
    return copy.deepcopy(module).requires_grad_(False)


def scores_of(own: Any, other: Any) -> Any:
    """1 where the own return is larger, 0.5 where both are equal, else 0."""
    difference = numpy.subtract(own, other)
    return numpy.where(numpy.abs(difference) < 1e-9, 0.5, difference > 0)
