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

    def expected(self) -> float:
        """The same, closer to a draw the fewer episodes it is known from."""
        episodes = min(self.episodes, WINDOW)
        return (self.rate * episodes + 0.5 * _UNKNOWN) / (episodes + _UNKNOWN)


@attrs.define(eq=False)
class Copy:
    """The modules of a league as they were at a step."""

    number: int
    step: int
    elo: float
    modules: Mapping[str, Module]
    win_rates: Mapping[int, float]
    """Win rate against each older copy of the pool, when this one was made."""

    def get_state(self) -> dict[str, Any]:
        """Weights are not copied, since they never change."""
        weights = {name: module.state_dict() for name, module in self.modules.items()}
        rates = [[number, rate] for number, rate in self.win_rates.items()]
        return attrs.asdict(self, recurse=False) | {"modules": weights, "win_rates": rates}


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
        """The same by copy, since there is that copy."""
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
        first = len(self.history) - self._section.pool
        return [self.known[number] for number in sorted(self.known) if number >= first]

    def forget(self, playing: Collection[int]) -> None:
        """Forget removed copies but those that play."""
        pool = [one.number for one in self.copies]
        self.known = {n: one for n, one in self.known.items() if n in pool or n in playing}

    def begin(self) -> None:
        """Have a first copy."""
        if not self.copies:
            self._add(0)

    def refresh(self, timestep: int) -> None:
        """Add a copy to the pool if one is due."""
        if self._hears:
            return
        self.settle()
        section, recent, newest = self._section, self.recent, self.copies[-1:]
        is_due = not newest or 0 < section.every <= timestep - newest[0].step
        won = recent.episodes >= WINDOW and recent.rate >= section.win_rate > 0
        if is_due or won:
            self._add(timestep)

    def draw(self, random: numpy.random.Generator) -> int:
        """The number of an opponent."""
        numbers = [one.number for one in self.copies]
        if self._section.draw == "latest":
            return numbers[-1]
        if self._section.draw == "uniform":
            return numbers[int(random.integers(len(numbers)))]
        # Prioritized fictitious self-play, with the weights of AlphaStar: (1 - win rate)².
        rates = [self.against[number].expected() for number in numbers]
        chances = numpy.array([(1 - rate) ** 2 for rate in rates])
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
            "league/pool": float(len(self.copies)),
            "league/copies": float(len(self.history)),
        }
        return metrics | ({"league/win_rate": self.recent.rate} if self.recent.episodes else {})

    def get_state(self) -> dict[str, Any]:
        """The pool and its ratings, as they are in all learners."""
        return {
            "copies": [one.get_state() for one in self.copies],
            "history": [[step, elo] for step, elo in self.history],
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

    def add_copies(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Have copies as they were saved."""
        for one in saved:
            copies = {name: _frozen(self.modules[name]) for name in one["modules"]}
            for name, module in copies.items():
                module.load_state_dict(one["modules"][name])
            rates = dict(map(tuple, one["win_rates"]))
            number = one["number"]
            self.known[number] = Copy(number, one["step"], one["elo"], copies, rates)

    def _add(self, step: int) -> None:
        """Add a copy of the modules, which becomes the latest one."""
        rates = {number: one.rate for number, one in self.against.items() if one.episodes}
        copies = {name: _frozen(module) for name, module in self.modules.items()}
        number = len(self.history)
        self.known[number] = Copy(number, step, self.elo, copies, rates)
        self.history.append((step, self.elo))
        self.recent = WinRate()
        self.against = {one.number: self.against.get(one.number, WinRate()) for one in self.copies}


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
        self._games = environments.vector
        # Each process of a run has draws of its own.
        place = (environments.first,) if environments.first else ()
        self._random = numpy.random.default_rng(derive(seed, "league", *place))
        agents, num = list(environments.agents), environments.num_envs
        self._members = [[agents.index(agent) for agent in side] for side in roster.sides]
        side_of = {agent: number for number, side in enumerate(roster.sides) for agent in side}
        rows = self._games.rows
        self._columns = {name: [agents.index(one) for one in rows[name].agents] for name in rows}
        self._side_of = {name: [side_of[one] for one in rows[name].agents] for name in rows}
        self._playing = numpy.full((num, len(roster.sides)), CURRENT)
        """The copy that plays each side of each game."""
        self._earned = numpy.zeros((num, len(agents)))
        self.copies = {name: numpy.full(rows[name].num, CURRENT) for name in roster.modules}
        """The copy that acts for each row of a module."""

    def refresh(self, timestep: int) -> None:
        """Add a copy to the pool if one is due."""
        self.roster.refresh(timestep)
        self.roster.forget(set(self._playing.reshape(-1).tolist()))

    def start(self) -> None:
        """All environments were reset."""
        self.roster.begin()
        self._earned[:] = 0
        self._draw_opponents(range(len(self._playing)))

    def policies(self, module_id: str) -> Callable[[int], Callable[[ActInput], Acted]]:
        """How the copy of each number acts for a module."""

        def policy(number: int) -> Callable[[ActInput], Acted]:
            module = self.roster.known[number].modules[module_id]
            return module.forward_inference if self._optimal else module.forward_exploration

        return policy

    def earn(self) -> None:
        """Count the rewards of a step."""
        for name, rows in self._games.rows.items():
            earned = numpy.where(rows.answered, rows.rewards, 0.0)
            self._earned[:, self._columns[name]] += earned.reshape(len(self._playing), -1)

    def begin_episodes(self) -> None:
        """Score the episodes that ended in a step, and draw who plays the next ones."""
        over = numpy.flatnonzero(self._games.over).tolist()
        trained = self.roster.trained
        for game in over:
            playing = self._playing[game]
            earned = [self._earned[game, members].mean() for members in self._members]
            opponents = [side for side in trained if playing[side] != CURRENT]
            for side in opponents:
                (learner,) = set(trained) - set(opponents)
                score = float(scores_of(earned[learner], earned[side]))
                self.roster.results.append((int(playing[side]), score))
        self._earned[over] = 0
        self._draw_opponents(over)

    def get_state(self) -> dict[str, Any]:
        """What is not the same in all processes of a run."""
        return {
            "random": self._random.bit_generator.state,
            "retired": [
                one.get_state()
                for number, one in self.roster.known.items()
                if number not in self.roster.against
            ],
            "results": self.roster.results,
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
            return
        self._playing, self._earned = saved["playing"], saved["earned"]
        for game in range(len(self._playing)):
            self._assign_rows(game)

    def _draw_opponents(self, games: Sequence[int]) -> None:
        random, trained = self._random, self.roster.trained
        for game in games:
            self._playing[game] = CURRENT
            if random.random() >= self._self_play:
                learner = trained[int(random.integers(len(trained)))]
                for side in trained:
                    if side != learner:
                        self._playing[game, side] = self.roster.draw(random)
            self._assign_rows(game)

    def _assign_rows(self, game: int) -> None:
        for name, copies in self.copies.items():
            sides = self._side_of[name]
            copies[game * len(sides) : (game + 1) * len(sides)] = self._playing[game, sides]


def _frozen(module: Module) -> Module:
    """A copy that is not trained."""
    return copy.deepcopy(module).requires_grad_(False)


def scores_of(own: Any, other: Any) -> Any:
    """1 where the own return is larger, 0.5 where both are equal, else 0."""
    difference = numpy.subtract(own, other)
    return numpy.where(numpy.abs(difference) < 1e-9, 0.5, difference > 0)
