"""Evaluate a module, again and again, on the same episodes in environments of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rlplug.envs import Environments
from rlplug.evaluation.play import play
from rlplug.nn.modes import evaluating
from rlplug.plugin import Module
from rlplug.seeding import derive, forked

__all__ = ["Evaluator"]


class Evaluator:
    """Plays greedy episodes, and leaves no trace in the run: neither random numbers nor modes.

    The environments are made at the first evaluation. Every evaluation begins from the same seed,
    so that two modules are compared on the same episodes.
    """

    def __init__(
        self,
        make: Callable[[int], Environments],
        *,
        episodes: int,
        parallel: int,
        seed: int,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._make = make
        self._episodes = episodes
        self._parallel = min(parallel, episodes)
        self._seed = derive(seed, "evaluation")
        self._check = check
        self._environments: Environments | None = None

    def evaluate(
        self, module: Module, step: int, see: Callable[[Any], Any] | None = None
    ) -> dict[str, float]:
        """`eval/return_mean` and its companions for the module as it is.

        `see` makes of observations what the module is trained on.
        """
        started = time.perf_counter()
        if self._environments is None:
            self._environments = self._make(self._parallel)
        with forked(self._seed), evaluating(module):
            played = play(
                module,
                self._environments,
                episodes=self._episodes,
                seed=self._seed,
                timestep=step,
                see=see,
                check=self._check,
            )
        return {**played.metrics(), "time/evaluation_seconds": time.perf_counter() - started}

    def close(self) -> None:
        """Close the environments, if there ever were any."""
        if self._environments is not None:
            self._environments.vector.close()
            self._environments = None
