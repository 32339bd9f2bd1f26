"""Play an exact number of episodes, each of which was assigned to an environment in advance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from rlplug.envs import Environments
from rlplug.evaluation.scores import Played, Scores
from rlplug.plugin import Acted, Module
from rlplug.sampling.seat import Columns, Seat
from rlplug.seeding import derive

__all__ = ["LONGEST", "Table", "play"]

LONGEST = 1_000_000
"""Steps after which an episode counts as it is, lest one without an end hold up the run."""


def play(
    module: Module,
    environments: Environments,
    *,
    episodes: int,
    seed: int,
    timestep: int = 0,
    greedy: bool = True,
    see: Callable[[Any], Any] | None = None,
    check: Callable[[], None] = lambda: None,
    longest: int = LONGEST,
) -> Played:
    """The returns and lengths of exactly so many episodes.

    Whoever takes the first n episodes that end counts the short ones too often. Here each
    environment has its share before anything begins, and plays it to the end. `see` makes of
    observations what the module was trained on; `check` is called every step and may raise.
    """
    random = numpy.random.default_rng(derive(seed, "acting"))
    table = Table(environments, module, see, random)
    act, choose = table.act, module.forward_inference if greedy else module.forward_exploration
    act.timestep = timestep
    scores = Scores(episodes, environments.num_envs, longest)
    table.reset(seed)
    while scores.playing.any():
        check()
        with torch.no_grad():
            acted = choose(act)
        stepped, rewards, ended = table.step(acted)
        scores.add(stepped, rewards, ended)
    return scores.played()


class Table:
    """Environments and who plays in them: what is seen, remembered, and reset."""

    def __init__(
        self,
        environments: Environments,
        module: Module,
        see: Callable[[Any], Any] | None,
        random: numpy.random.Generator,
    ) -> None:
        self._seat = Seat(environments, module, random=random, show=see, during=" of an evaluation")
        self.act = self._seat.act
        self._num_envs = environments.num_envs
        self._taken = 0
        """Steps since the reset, summed over environments."""

    def reset(self, seed: int) -> None:
        """All episodes begin, from a seed."""
        self._taken = 0
        self._seat.reset(seed)

    def step(self, acted: Acted) -> tuple[Any, Any, Any]:
        """Where it was a step and no mere reset, what it paid, and where it ended an episode."""
        seat = self._seat
        if self.act.state is not None:
            self.act.state = acted.state
        before, self._taken = self._taken, self._taken + self._num_envs
        outcome: Columns = {}
        seat.step(acted.actions, outcome, 0, before)
        paid = numpy.asarray(outcome["rewards"])
        seat.health.check_step(paid, None, before)
        seat.health.check_seen(seat.seen["observations"], self._taken)
        ended = outcome["terminated"] | outcome["truncated"]
        stepped = outcome.get("stepped", numpy.ones_like(ended))
        return stepped, paid.astype(float), ended
