"""Rules that choose at random, and better arms more often: epsilon-greedy and softmax."""

from __future__ import annotations

import numpy

from rlplug import ActInput
from rlplug.config.schedule import resolve
from rlplug_bandits.config import EpsilonGreedyConfig, SoftmaxConfig
from rlplug_bandits.counts import ArmCounts, Floats, present, tied

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

    def probabilities(self, rows: int, act: ActInput) -> Floats:
        """Epsilon shared by the arms that are present, and the rest by the best of them."""
        epsilon = float(self.exploration)
        allowed = present(act.action_mask, rows, self.num_arms)
        uniform = allowed / allowed.sum(1, keepdims=True)
        mixed: Floats = epsilon * uniform + (1 - epsilon) * tied(self.means(), allowed)
        return mixed


class SoftmaxModule(ArmCounts):
    """Arms with probabilities proportional to exp(mean / temperature) (Boltzmann exploration)."""

    def __init__(self, num_arms: int, config: SoftmaxConfig | None = None) -> None:
        config = resolve(SoftmaxConfig() if config is None else config, 0)
        super().__init__(num_arms, config.initial_value, config.temperature)

    def scores(self, rows: int, random: numpy.random.Generator) -> Floats:
        """Means plus Gumbel noise: the highest is a draw from the softmax of those present."""
        noise = random.gumbel(size=(rows, self.num_arms))
        scores: Floats = self.means() / float(self.exploration) + noise
        return scores

    def probabilities(self, rows: int, act: ActInput) -> Floats:
        """The softmax over the arms that are present."""
        allowed = present(act.action_mask, rows, self.num_arms)
        logits = numpy.where(allowed, self.means() / float(self.exploration), -numpy.inf)
        weights = numpy.exp(logits - logits.max(1, keepdims=True))
        chances: Floats = weights / weights.sum(1, keepdims=True)
        return chances
