"""Epsilon-greedy exploration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import numpy
import torch
from torch import Tensor

from rlplug import ActInput
from rlplug_dqn.config import DQNConfig

__all__ = ["RUN_STEPS", "Exploration", "Greedy"]

RUN_STEPS = 50_000
"""Length of a run that was not told its length."""

Greedy: TypeAlias = Callable[[Any, Any], Any]
"""From observations and action mask to greedy actions."""


@attrs.frozen(kw_only=True)
class Exploration:
    """Epsilon falls linearly from `initial` to `final`; before `learning_starts` it is 1."""

    initial: float
    final: float
    fraction: float
    learning_starts: int

    @classmethod
    def of(cls, config: DQNConfig) -> Exploration:
        """The schedule that the options describe."""
        return cls(
            initial=config.exploration_initial_eps,
            final=config.exploration_final_eps,
            fraction=config.exploration_fraction,
            learning_starts=config.learning_starts,
        )

    def epsilon(self, timestep: int, steps: int) -> float:
        """Probability of a random action at one step of a run of `steps`."""
        if timestep < self.learning_starts:
            return 1.0
        falling = self.fraction * (steps or RUN_STEPS)
        if timestep >= falling:
            return self.final
        return self.initial + (self.final - self.initial) * timestep / falling

    def choose(self, act: ActInput, greedy: Greedy, n_actions: int) -> Any:
        """Greedy actions, each replaced by a random one with probability epsilon."""
        observations, mask, random = act.observations, act.action_mask, act.random
        epsilon = self.epsilon(act.timestep, act.steps)
        if act.in_torch:
            return _mixed(greedy(observations, mask), epsilon, n_actions, mask, random)
        if epsilon <= 0:
            return greedy(observations, mask)
        count = len(observations) if type(observations) is numpy.ndarray else _count(observations)
        if count == 1:
            drawn = act.chance()
            if drawn >= epsilon:
                return greedy(observations, mask)
            if mask is None:
                # Given that it is below epsilon, drawn / epsilon is uniform again.
                return numpy.array([int(drawn / epsilon * n_actions)])
            return _random_actions(random, 1, n_actions, mask)
        explores = random.random(count) < epsilon
        # Skips the forward pass where all actions are random.
        if explores.all():
            return _random_actions(random, count, n_actions, mask)
        actions = greedy(observations, mask)
        if explores.any():
            others = _random_actions(random, count, n_actions, mask)
            actions = numpy.where(explores, others, actions)
        return actions

    def probabilities(self, act: ActInput, greedy: Any, n_actions: int) -> Any:
        """Probability of each action, (n, actions), given the greedy ones."""
        epsilon, mask = self.epsilon(act.timestep, act.steps), act.action_mask
        allowed = numpy.ones((len(greedy), n_actions)) if mask is None else numpy.asarray(mask != 0)
        shares = epsilon * allowed / allowed.sum(1, keepdims=True)
        shares[numpy.arange(len(greedy)), greedy] += 1.0 - epsilon
        return shares

    def log_prob(self, act: ActInput, actions: Any, greedy: Any, n_actions: int) -> Any:
        """Log-probabilities of actions, given the greedy ones: of noisy networks, their noise."""
        epsilon = self.epsilon(act.timestep, act.steps)
        mask = act.action_mask
        allowed = n_actions if mask is None else (mask != 0).sum(1)
        probability = epsilon / allowed + (1.0 - epsilon) * (greedy == actions)
        if act.in_torch:
            return probability.log()
        return numpy.log(probability).astype(numpy.float32)


def _mixed(
    actions: Tensor, epsilon: float, n_actions: int, mask: Tensor | None, random: torch.Generator
) -> Tensor:
    """Actions, each replaced by a random one with probability epsilon; no value is read."""
    drawn = torch.rand((2, *actions.shape), generator=random, device=actions.device)
    others = (drawn[1] * n_actions).long()
    if mask is not None:
        chances = torch.rand(mask.shape, generator=random, device=actions.device)
        others = chances.masked_fill(mask == 0, -1.0).argmax(1)
    return torch.where(drawn[0] < epsilon, others, actions)


def _random_actions(random: numpy.random.Generator, count: int, n_actions: int, mask: Any) -> Any:
    """Allowed actions, uniformly."""
    if mask is None:
        # Many times as fast as `integers`; uniform up to rounding of 2**-53.
        return (random.random(count) * n_actions).astype(numpy.int64)
    return numpy.where(mask, random.random((count, n_actions)), -1.0).argmax(1)


def _count(observations: Any) -> int:
    while not hasattr(observations, "shape"):
        parts = observations.values() if hasattr(observations, "values") else observations
        observations = next(iter(parts))
    return len(observations)
