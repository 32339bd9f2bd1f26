"""Log-probabilities and entropies with their slopes, in a few array operations each.

What autograd would find through twenty small operations is known in closed form for the two
commonest distributions; for one choice and for normal numbers it is written down here.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, TypeAlias

import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.spaces import AnySpace

__all__ = ["ChoiceScore", "NormalScore", "Score", "Scorer", "scorer_for"]

Array: TypeAlias = "NDArray[Any]"

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Score(Protocol):
    """How likely actions were, and how that changes with the parameters."""

    log_prob: Array
    """Of each row's action."""
    entropy: Array
    """Of each row's distribution."""

    def slope(self, by_log_prob: Array, by_entropy: float) -> Array:
        """The gradient of the parameters, given that of the log-probabilities and entropies."""


class Scorer(Protocol):
    """Scores actions under the parameters that a network gave."""

    def __call__(self, parameters: Array, actions: Array, mask: Array | None) -> Score: ...


def scorer_for(action_space: AnySpace, *, squash: bool) -> Scorer | None:
    """The closed form for an action space; None where autograd has to do it."""
    if isinstance(action_space, spaces.Discrete):
        start = int(action_space.start)
        return lambda logits, actions, mask: ChoiceScore(logits, actions - start, mask)
    if isinstance(action_space, spaces.Box) and not squash:
        return NormalScore
    return None


class ChoiceScore:
    """One of n actions by its logit; arrays lie with a row per action, which is faster."""

    def __init__(self, logits: Array, chosen: Array, mask: Array | None = None) -> None:
        turned = numpy.ascontiguousarray(logits.T)
        if mask is not None:
            # Not minus infinity: 0 × inf would make the entropy NaN.
            turned = numpy.where(mask.T, turned, numpy.finfo(turned.dtype).min)
        turned = turned - numpy.maximum.reduce(turned)
        self._chances = numpy.exp(turned)
        total = numpy.add.reduce(self._chances)
        self._chances /= total
        self._logs = turned - numpy.log(total)
        self._places = (chosen, numpy.arange(len(chosen)))
        self.log_prob: Array = self._logs[self._places]
        self.entropy: Array = -numpy.add.reduce(self._chances * self._logs)

    def slope(self, by_log_prob: Array, by_entropy: float) -> Array:
        """d log p(a) / d logit = [a] - p, d H / d logit = -p (log p + H)."""
        slope = self._chances * -by_log_prob
        slope[self._places] += by_log_prob
        if by_entropy:
            slope -= self._chances * ((self._logs + self.entropy) * by_entropy)
        turned: Array = slope.T
        return turned


class NormalScore:
    """Independent normal numbers by their means and logarithms of deviations."""

    def __init__(self, parameters: Array, actions: Array, mask: Array | None = None) -> None:
        size = parameters.shape[1] // 2
        mean, log_std = parameters[:, :size], parameters[:, size:]
        self._scale = numpy.exp(-log_std)
        self._away = (actions.reshape(len(actions), size) - mean) * self._scale
        spread = numpy.add.reduce(log_std, 1)
        halves = numpy.einsum("ij,ij->i", self._away, self._away) * 0.5
        self.log_prob: Array = -halves - spread - size * _HALF_LOG_TAU
        self.entropy: Array = spread + size * (0.5 + _HALF_LOG_TAU)

    def slope(self, by_log_prob: Array, by_entropy: float) -> Array:
        """d log p / d mean = away / std, d log p / d log std = away² - 1, d H / d log std = 1."""
        weights = by_log_prob[:, None]
        by_log_std = (self._away * self._away - 1) * weights + by_entropy
        return numpy.concatenate([self._away * self._scale * weights, by_log_std], 1)
