"""Random actions: how likely they are at a step, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import numpy

from rlplug import ActInput
from rlplug_dqn.config import DQNConfig

__all__ = ["RUN_STEPS", "Exploration"]

RUN_STEPS = 50_000
"""The length of a run of which nobody said how long it is."""

Best: TypeAlias = Callable[[Any, Any], Any]
"""From observations and action mask to the actions of the highest value."""


@attrs.frozen(kw_only=True)
class Exploration:
    """A chance of random actions that falls in a straight line, then stays.

    Before anything is learned, all actions are random.
    """

    initial: float
    final: float
    fraction: float
    learning_starts: int

    @classmethod
    def of(cls, config: DQNConfig) -> Exploration:
        """As the options say."""
        return cls(
            initial=config.exploration_initial_eps,
            final=config.exploration_final_eps,
            fraction=config.exploration_fraction,
            learning_starts=config.learning_starts,
        )

    def epsilon(self, timestep: int, steps: int) -> float:
        """The chance at one step of a run of so many."""
        if timestep < self.learning_starts:
            return 1.0
        falling = self.fraction * (steps or RUN_STEPS)
        if timestep >= falling:
            return self.final
        return self.initial + (self.final - self.initial) * timestep / falling

    def choose(self, act: ActInput, best: Best, n_actions: int) -> Any:
        """The best actions, each replaced by a random one with the chance of this step."""
        observations, mask, random = act.observations, act.action_mask, act.random
        epsilon = self.epsilon(act.timestep, act.steps)
        if epsilon <= 0:
            return best(observations, mask)
        count = len(observations) if type(observations) is numpy.ndarray else _count(observations)
        if count == 1:
            drawn = act.chance()
            if drawn >= epsilon:
                return best(observations, mask)
            if mask is None:
                # Below epsilon, its share of epsilon is as random as another number would be.
                return numpy.array([int(drawn / epsilon * n_actions)])
            return _any(random, 1, n_actions, mask)
        anyhow = random.random(count) < epsilon
        # Most of the network's work can be spared where all actions are random.
        if anyhow.all():
            return _any(random, count, n_actions, mask)
        actions = best(observations, mask)
        if anyhow.any():
            actions = numpy.where(anyhow, _any(random, count, n_actions, mask), actions)
        return actions


def _any(random: numpy.random.Generator, count: int, n_actions: int, mask: Any) -> Any:
    """Any allowed action, each as likely as the others."""
    if mask is None:
        # Many times as fast as `integers`, and as fair to one part in 2**53 of the actions.
        return (random.random(count) * n_actions).astype(numpy.int64)
    return numpy.where(mask, random.random((count, n_actions)), -1.0).argmax(1)


def _count(observations: Any) -> int:
    while not hasattr(observations, "shape"):
        parts = observations.values() if hasattr(observations, "values") else observations
        observations = next(iter(parts))
    return len(observations)
