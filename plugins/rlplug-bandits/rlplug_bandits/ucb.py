"""Upper confidence bounds of mean rewards: UCB1 and MetricUCB."""

from __future__ import annotations

import numpy

from rlplug import ActInput
from rlplug.config.schedule import resolve
from rlplug_bandits.config import UCB1Config
from rlplug_bandits.counts import ArmCounts, Floats, present, tied

__all__ = ["MetricUCBModule", "UCB1Module"]


class UCB1Module(ArmCounts):
    """Auer, Cesa-Bianchi and Fischer (2002): mean + alpha √(2 ln t / n), rewards from 0 to 1.

    n is the weight of the arm, t that of all arms; arms without data come first.
    """

    def __init__(self, num_arms: int, config: UCB1Config | None = None) -> None:
        config = resolve(UCB1Config() if config is None else config, 0)
        super().__init__(num_arms, exploration=config.alpha)

    def scores(self, rows: int, random: numpy.random.Generator) -> Floats:
        """The bound of each arm."""
        counts = self.counts()
        tried = counts > 0
        # Weights may add up to less than 1.
        log_t = numpy.log(max(counts.sum(), 1.0))
        ratio = log_t / numpy.where(tried, counts, 1.0)
        bound: Floats = self.means() + float(self.exploration) * self.width(ratio)
        return numpy.where(tried, bound, numpy.inf)

    def probabilities(self, rows: int, act: ActInput) -> Floats:
        """Shared by the arms of the highest bound."""
        allowed = present(act.action_mask, rows, self.num_arms)
        return tied(self.scores(rows, act.random), allowed)

    def width(self, ratio: Floats) -> Floats:
        """The confidence width of each arm, given ln t / n."""
        width: Floats = numpy.sqrt(2.0 * ratio)
        return width


class MetricUCBModule(UCB1Module):
    """Kleinberg, Slivkins and Upfal (2008): mean + alpha (√(mean ln t / n) + ln t / n).

    The width shrinks with the mean: for rewards from 0 to 1 that are seldom high, arms are told
    apart sooner than by UCB1.
    """

    lowest_reward = 0.0

    def width(self, ratio: Floats) -> Floats:
        """The confidence width of each arm, given ln t / n."""
        width: Floats = numpy.sqrt(self.means() * ratio) + ratio
        return width
