"""Thompson sampling: the arm that is best under a draw from the posterior of the means."""

from __future__ import annotations

from typing import Any

import numpy

from rlplug.bandits.probability import beta_best, gaussian_best
from rlplug.config.schedule import resolve
from rlplug_bandits.config import ThompsonConfig
from rlplug_bandits.counts import ArmCounts, Floats

__all__ = ["BetaThompsonModule", "GaussianThompsonModule"]


class BetaThompsonModule(ArmCounts):
    """Posterior Beta(1 + Σr, 1 + Σ(1 − r)), exact for rewards of 0 and 1 (Thompson, 1933)."""

    lowest_reward, highest_reward = 0.0, 1.0

    def __init__(self, num_arms: int, config: ThompsonConfig | None = None) -> None:
        # The mean of the uniform prior.
        super().__init__(num_arms, initial_value=0.5)

    def scores(self, rows: int, random: numpy.random.Generator) -> Floats:
        """A draw of every arm's mean for each row."""
        total = self.total.cpu().numpy()
        failures = numpy.maximum(self.counts() - total, 0.0)
        return random.beta(1.0 + total, 1.0 + failures, (rows, self.num_arms))

    def probabilities(self, rows: int, mask: Any = None) -> Floats:
        """Of each arm's draw being the highest, by numerical integration."""
        total = self.total.cpu().numpy()
        failures = numpy.maximum(self.counts() - total, 0.0)
        # Without a mask, all rows are alike.
        count = 1 if mask is None else rows
        a, b = (numpy.tile(1.0 + one, (count, 1)) for one in (total, failures))
        return beta_best(a, b, mask).repeat(rows // count, 0)


class GaussianThompsonModule(ArmCounts):
    """Posterior of a mean with a Gaussian prior, and Gaussian rewards of known deviation."""

    def __init__(self, num_arms: int, config: ThompsonConfig | None = None) -> None:
        config = resolve(ThompsonConfig(distribution="gaussian") if config is None else config, 0)
        super().__init__(num_arms, initial_value=config.prior_mean)
        self.prior_mean = config.prior_mean
        self.prior_precision = config.prior_std**-2
        self.reward_precision = config.reward_std**-2

    def posterior(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation of every arm's mean reward."""
        precision = self.prior_precision + self.reward_precision * self.counts()
        evidence = self.reward_precision * self.total.cpu().numpy()
        mean: Floats = (self.prior_precision * self.prior_mean + evidence) / precision
        deviation: Floats = precision**-0.5
        return mean, deviation

    def scores(self, rows: int, random: numpy.random.Generator) -> Floats:
        """A draw of every arm's mean for each row."""
        return random.normal(*self.posterior(), (rows, self.num_arms))

    def probabilities(self, rows: int, mask: Any = None) -> Floats:
        """Of each arm's draw being the highest, by numerical integration."""
        count = 1 if mask is None else rows
        mean, deviation = (numpy.tile(one, (count, 1)) for one in self.posterior())
        return gaussian_best(mean, deviation, mask).repeat(rows // count, 0)
