"""Rules that choose at random, and better arms more often: epsilon-greedy and softmax."""

from __future__ import annotations

from typing import Any

import numpy

from rlplug.bandits.probability import allowed_arms, greedy_probabilities
from rlplug.config.schedule import resolve
from rlplug_bandits.config import EpsilonGreedyConfig, SoftmaxConfig
from rlplug_bandits.counts import ArmCounts, Floats

__all__ = ["EpsilonGreedyModule", "SoftmaxModule"]


class EpsilonGreedyModule(ArmCounts):
    """A random arm with probability epsilon, else the arm of the highest mean reward."""

    def __init__(self, num_arms: int, config: EpsilonGreedyConfig | None = None) -> None:
        config = resolve(EpsilonGreedyConfig() if config is None else config, 0)
        super().__init__(num_arms, config.initial_value, config.epsilon)

    def scores(self, rows: int, random: numpy.random.Generator) -> Floats:
        """The means; in rows that explore, all alike."""
        explores = random.random((rows, 1)) < float(self.exploration)
        scores: Floats = numpy.where(explores, 0.0, self.means())
        return scores

    def probabilities(self, rows: int, mask: Any = None) -> Floats:
        """Epsilon for all that are allowed alike, the rest for the best."""
        epsilon, shape = float(self.exploration), (rows, self.num_arms)
        allowed = allowed_arms(mask, shape)
        best = greedy_probabilities(numpy.broadcast_to(self.means(), shape), mask)
        shares: Floats = epsilon * allowed / allowed.sum(1, keepdims=True) + (1.0 - epsilon) * best
        return shares


class SoftmaxModule(ArmCounts):
    """Arms with probabilities proportional to exp(mean / temperature) (Boltzmann exploration)."""

    def __init__(self, num_arms: int, config: SoftmaxConfig | None = None) -> None:
        config = resolve(SoftmaxConfig() if config is None else config, 0)
        super().__init__(num_arms, config.initial_value, config.temperature)

    def scores(self, rows: int, random: numpy.random.Generator) -> Floats:
        """Means plus Gumbel noise: the highest is a draw from the softmax of those present."""
        noise = random.gumbel(size=(rows, self.num_arms))
        scores: Floats = self.means() + float(self.exploration) * noise
        return scores

    def probabilities(self, rows: int, mask: Any = None) -> Floats:
        """The softmax of those that are allowed."""
        allowed = allowed_arms(mask, (rows, self.num_arms))
        means = numpy.where(allowed, self.means(), -numpy.inf)
        with numpy.errstate(over="ignore"):
            # With a temperature close to 0, all arms but the best are infinitely far from it.
            weights = numpy.exp((means - means.max(1, keepdims=True)) / float(self.exploration))
        shares: Floats = weights / weights.sum(1, keepdims=True)
        return shares
