"""Simulates a bandit problem: draws contexts and the rewards of all arms ahead of time."""

from __future__ import annotations

from typing import Any

import numpy
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rlplug.bandits.problem import Floats, Problem, Rounds, Source
from rlplug.errors import RequestError
from rlplug.seeding import derive

__all__ = ["BanditSimulator"]

BLOCK = 2**15
"""Numbers to draw at once: few NumPy calls, and still within the CPU cache."""

MAX_STEPS = 256


class BanditSimulator:
    """Contexts and rewards of n environments, drawn many steps at a time.

    A step only reads at an index. Arrays that were returned are never written again.
    """

    def __init__(self, problem: Problem, name: str, n: int) -> None:
        self.problem = problem
        self._name = name
        self._shape = (n,)
        self._offsets = numpy.arange(n) * problem.num_arms
        width = spaces.flatdim(problem.observation_space) + 2 * problem.num_arms
        self._steps = min(max(BLOCK // (n * width), 1), MAX_STEPS)
        self._random = numpy.random.default_rng()
        self._source: Source | None = None
        self._rounds: Rounds | None = None
        self._at = 0
        self.problem_seed = 0

    @property
    def started(self) -> bool:
        """Whether `reset` was called."""
        return self._source is not None

    def reset(self, random: numpy.random.Generator, seed: int | None) -> None:
        """Start the problem over; contexts and noise are drawn from `random`."""
        own = self.problem.problem_seed
        if own is None:
            own = int(random.integers(2**62)) if seed is None else derive(seed, "problem")
        self.problem_seed = own
        self._source = self.problem.start(own)
        self._random = random
        self._rounds = None

    def next_contexts(self) -> Any:
        """Advance to the next n contexts and return their observations."""
        self._at += 1
        if self._rounds is None or self._at == self._steps:
            if self._source is None:
                raise ResetNeeded(f"{self._name}: call reset before step")
            self._rounds = self._source.draw(self._random, self._steps, *self._shape)
            self._at = 0
        return self.contexts()

    def contexts(self) -> Any:
        """The observations of the current n contexts."""
        if self._rounds is None:
            raise ResetNeeded(f"{self._name}: call reset before step")
        observations, at = self._rounds.observations, self._at
        if isinstance(observations, dict):
            return {name: part[at] for name, part in observations.items()}
        return observations[at]

    def pull(self, actions: Any) -> tuple[Floats, dict[str, NDArray[Any]]]:
        """The rewards of these arms in the current contexts, and infos with their regret."""
        rounds, at = self._rounds, self._at
        if rounds is None:
            raise ResetNeeded(f"{self._name}: call reset before step")
        index = self._checked(actions) + self._offsets
        expected = rounds.expected[at].take(index)
        best = rounds.best[at]
        regret = best - expected
        infos = {"best_reward": best, "expected_reward": expected, "regret": regret}
        if rounds.present is not None:
            infos["absent_arm"] = ~rounds.present[at].take(index)
            # An absent arm earns 0: more than the best if all present arms lose.
            numpy.maximum(regret, 0.0, out=regret)
        return rounds.rewards[at].take(index), infos

    def _checked(self, actions: Any) -> NDArray[numpy.int64]:
        arms = numpy.asarray(actions)
        if arms.shape != self._shape or arms.dtype.kind not in "iu":
            raise RequestError(
                f"{self._name}: actions must be whole numbers of shape {self._shape}, "
                f"found {arms.dtype} of shape {arms.shape}."
            )
        arms = arms.astype(numpy.int64, copy=False)
        if arms.size == 1 and 0 <= arms.item() < self.problem.num_arms:
            return arms
        # Negative numbers are huge as unsigned ones: one comparison checks both bounds.
        fits = arms.view(numpy.uint64) < self.problem.num_arms
        if numpy.count_nonzero(fits) != arms.size:
            row = int(fits.argmin())
            raise RequestError(
                f"{self._name}: action {arms[row]} in row {row} is no arm: "
                f"there are {self.problem.num_arms}, counted from 0."
            )
        return arms
