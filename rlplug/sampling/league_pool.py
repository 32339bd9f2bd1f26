"""The pool of a league: frozen copies of modules, win rates against them, and Elo ratings."""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence
from typing import Any

import attrs
import numpy

from rlplug.config.league_section import LeagueSection
from rlplug.plugin import Module

__all__ = ["CURRENT", "Copy", "Pool", "WinRate", "frozen"]

CURRENT = -1
"""Stands for the current weights where numbers of copies stand."""

WINDOW = 100
"""Episodes that win rates are of; no copy is added by its win rate before as many."""

FIRST_ELO = 1200.0
ELO_STEP = 16.0
"""How far a surprising win moves the rating."""

_UNKNOWN = 8
"""Draws that a prioritized opponent is taken to have played before: few episodes tell little."""


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
    win_rates: dict[int, float]
    """Win rate against each older copy of the pool, when this one was made."""


class Pool:
    """The newest copies, and how the current weights do against them."""

    def __init__(self, section: LeagueSection) -> None:
        self.copies: list[Copy] = []
        """Those that opponents are drawn from, the oldest first."""
        self.retired: list[Copy] = []
        """Removed ones, which go on to act in episodes in progress."""
        self.elo = FIRST_ELO
        """Rating of the current weights."""
        self.recent = WinRate()
        """Of the current weights, since the last copy."""
        self.against: dict[int, WinRate] = {}
        """The same by copy, since there is that copy."""
        self.history: list[tuple[int, float]] = []
        """Step and rating of all copies so far."""
        self._section = section

    def is_due(self, step: int) -> bool:
        """Whether a copy is to be added."""
        section, recent = self._section, self.recent
        if not self.copies or (section.every and step - self.copies[-1].step >= section.every):
            return True
        won = recent.episodes >= WINDOW and recent.rate >= section.win_rate
        return bool(section.win_rate) and won

    def add(self, step: int, modules: Mapping[str, Module]) -> None:
        """Add a copy of the modules, which becomes the latest one."""
        rates = {number: one.rate for number, one in self.against.items() if one.episodes}
        copies = {module_id: frozen(module) for module_id, module in modules.items()}
        number = len(self.history)
        self.copies.append(Copy(number, step, self.elo, copies, rates))
        self.history.append((step, self.elo))
        self.against[number] = WinRate()
        self.recent = WinRate()
        self.retired += self.copies[: -self._section.pool]
        del self.copies[: -self._section.pool]
        kept = {one.number for one in self.copies}
        self.against = {number: one for number, one in self.against.items() if number in kept}

    def forget_retired(self, acting: set[int]) -> None:
        """Forget removed copies, but those that act."""
        self.retired = [one for one in self.retired if one.number in acting]

    def find(self, number: int) -> Copy:
        """A copy of the pool, or a removed one that acts."""
        return next(one for one in (*self.retired, *self.copies) if one.number == number)

    def draw(self, random: numpy.random.Generator) -> int:
        """The number of an opponent."""
        draw, copies = self._section.draw, self.copies
        if draw == "latest":
            return copies[-1].number
        if draw == "uniform":
            return copies[int(random.integers(len(copies)))].number
        # Prioritized fictitious self-play, with the weights of AlphaStar: (1 - win rate)².
        chances = numpy.array([(1 - self._expected(one.number)) ** 2 for one in copies])
        return copies[int(random.choice(len(copies), p=chances / chances.sum()))].number

    def add_result(self, number: int, score: float) -> None:
        """An episode against a copy has ended: 1 for a win, 0.5 for a draw, 0 for a loss."""
        difference = self.history[number][1] - self.elo
        self.elo += ELO_STEP * (score - 1 / (1 + 10 ** (difference / 400)))
        self.recent.add(score)
        if number in self.against:
            self.against[number].add(score)

    def win_rate_of(self, number: int, other: int) -> float:
        """Win rate of a copy, or the current weights, against another one; nan if unknown."""
        if number == other:
            return 0.5
        if CURRENT in (number, other):
            found = self.against[other if number == CURRENT else number]
            rate = found.rate if found.episodes else numpy.nan
            newer = number == CURRENT
        else:
            newer = number > other
            rate = self.find(max(number, other)).win_rates.get(min(number, other), numpy.nan)
        return rate if newer else 1 - rate

    def metrics(self) -> dict[str, float]:
        """`league/elo`, `league/win_rate` and the sizes."""
        metrics = {
            "league/elo": self.elo,
            "league/pool": float(len(self.copies)),
            "league/copies": float(len(self.history)),
        }
        if self.recent.episodes:
            metrics["league/win_rate"] = self.recent.rate
        return metrics

    def get_state(self, known: Container[int] = ()) -> dict[str, Any]:
        """All but the removed copies, and but those that are `known`.

        Weights are not copied, since they never change.
        """
        return {
            "copies": [_saved(one) for one in self.copies if one.number not in known],
            "history": [[step, elo] for step, elo in self.history],
            **self.get_ratings(),
        }

    def set_state(self, saved: Mapping[str, Any], modules: Mapping[str, Module]) -> None:
        """Restore a state; `modules` are those that the copies are like."""
        self.copies = [_restored(one, modules) for one in saved["copies"]]
        self.history = [(step, elo) for step, elo in saved["history"]]
        self.set_ratings(saved)

    def get_ratings(self) -> dict[str, Any]:
        """The rating and the win rates of the current weights."""
        return {
            "elo": self.elo,
            "recent": [self.recent.rate, self.recent.episodes],
            "against": [[n, one.rate, one.episodes] for n, one in self.against.items()],
        }

    def set_ratings(self, saved: Mapping[str, Any]) -> None:
        """Restore those."""
        self.elo, self.recent = saved["elo"], WinRate(*saved["recent"])
        self.against = {n: WinRate(rate, episodes) for n, rate, episodes in saved["against"]}

    def get_retired(self) -> list[dict[str, Any]]:
        """The removed copies that act."""
        return [_saved(one) for one in self.retired]

    def set_retired(
        self, saved: Sequence[Mapping[str, Any]], modules: Mapping[str, Module]
    ) -> None:
        """Restore those."""
        self.retired = [_restored(one, modules) for one in saved]

    def _expected(self, number: int) -> float:
        """Win rate against a copy, closer to a draw the fewer episodes it is known from."""
        found = self.against[number]
        episodes = min(found.episodes, WINDOW)
        return (found.rate * episodes + 0.5 * _UNKNOWN) / (episodes + _UNKNOWN)


def frozen(module: Module) -> Module:
    """A copy that is not trained."""
    return copy.deepcopy(module).requires_grad_(False)


def _saved(one: Copy) -> dict[str, Any]:
    return {
        "number": one.number,
        "step": one.step,
        "elo": one.elo,
        "modules": {module_id: module.state_dict() for module_id, module in one.modules.items()},
        "win_rates": [[number, rate] for number, rate in one.win_rates.items()],
    }


def _restored(saved: Mapping[str, Any], modules: Mapping[str, Module]) -> Copy:
    copies = {module_id: frozen(modules[module_id]) for module_id in saved["modules"]}
    for module_id, module in copies.items():
        module.load_state_dict(saved["modules"][module_id])
    rates = {number: rate for number, rate in saved["win_rates"]}  # noqa: C416 # lists, not pairs
    return Copy(saved["number"], saved["step"], saved["elo"], copies, rates)
