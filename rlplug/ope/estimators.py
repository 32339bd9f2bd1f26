"""Off-policy estimators: what another policy would have earned on the rows of a log.

Symbols: r, the logged reward; w = π(a|x) / p, the importance weight of the logged action, with
the probability π(a|x) of the policy to be judged and the propensity p; q(x, a), a model's
prediction of the reward of the logged action; q(x, π) = Σ π(a|x) q(x, a), that of the policy.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs
import numpy
from numpy.typing import NDArray

__all__ = [
    "Floats",
    "Terms",
    "dm",
    "dr",
    "importance_weights",
    "ips",
    "replay",
    "sndr",
    "snips",
    "switch_dr",
]

Floats: TypeAlias = NDArray[numpy.float64]


@attrs.frozen(kw_only=True, eq=False)
class Terms:
    """An estimate as means over rows: mean(offset) + mean(numerator) / mean(denominator).

    Numerators and denominators of shape (n, k) are k such quotients, which are added up. A
    bootstrap sample of the rows is a sample of the estimate.
    """

    offset: Floats | None = None
    numerator: Floats | None = None
    denominator: Floats | None = None
    """None: 1."""

    @property
    def columns(self) -> tuple[Floats, ...]:
        """Those that are there, in order."""
        return tuple(
            one for one in (self.offset, self.numerator, self.denominator) if one is not None
        )

    @property
    def value(self) -> float:
        """The estimate; NaN if no row counts."""
        means = (numpy.mean(one.reshape(len(one), -1), axis=0) for one in self.columns)
        return float(self.combine(*means))

    def combine(self, *means: NDArray[numpy.float64]) -> Any:
        """The estimate of the means of `columns`, (…, k) each, or estimates of arrays of them."""
        left = list(means)
        total = left.pop(0).sum(-1) if self.offset is not None else 0.0
        if self.numerator is None:
            return total
        share = left.pop(0)
        if self.denominator is None:
            return total + share.sum(-1)
        with numpy.errstate(invalid="ignore", divide="ignore"):
            return total + numpy.divide(share, left.pop(0)).sum(-1)


def importance_weights(probabilities: Floats, propensities: Floats, maximum: float = 0.0) -> Floats:
    """w = π(a|x) / p of each row, clipped to `maximum` unless it is 0."""
    weights: Floats = probabilities / propensities
    return numpy.minimum(weights, maximum) if maximum else weights


def replay(rewards: Floats, matches: NDArray[numpy.bool_]) -> Terms:
    """Mean reward of the rows whose action the policy would have chosen (Li et al. 2011).

    Unbiased where actions were logged uniformly at random.
    """
    matched = matches.astype(numpy.float64)
    return Terms(numerator=matched * rewards, denominator=matched)


def ips(rewards: Floats, weights: Floats) -> Terms:
    """Inverse propensity scoring: mean of w r (Horvitz and Thompson 1952)."""
    return Terms(numerator=weights * rewards)


def snips(rewards: Floats, weights: Floats) -> Terms:
    """Self-normalized IPS: mean of w r over the mean of w (Swaminathan and Joachims 2015)."""
    return Terms(numerator=weights * rewards, denominator=weights)


def dm(q_policy: Floats, influence: Floats | None = None) -> Terms:
    """Direct method: mean of q(x, π).

    With the `influence` of each row on a fitted model, intervals include the model's error.
    """
    if influence is None:
        return Terms(offset=q_policy)
    return Terms(offset=q_policy, numerator=influence - influence.mean())


def dr(rewards: Floats, weights: Floats, q_logged: Floats, q_policy: Floats) -> Terms:
    """Doubly robust: mean of q(x, π) + w (r − q(x, a)) (Dudík et al. 2011).

    With a model that was fitted for it (`mrdr_weights`), it is MRDR (Farajtabar et al. 2018).
    """
    return Terms(offset=q_policy, numerator=weights * (rewards - q_logged))


def sndr(rewards: Floats, weights: Floats, q_logged: Floats, q_policy: Floats) -> Terms:
    """Self-normalized DR: the correction is divided by the mean of w."""
    corrected = dr(rewards, weights, q_logged, q_policy)
    return attrs.evolve(corrected, denominator=weights)


def switch_dr(
    rewards: Floats, weights: Floats, q_logged: Floats, q_policy: Floats, threshold: float
) -> Terms:
    """DR that trusts the model alone where w is above a threshold (Wang et al. 2017)."""
    kept = numpy.where(weights <= threshold, weights, 0.0)
    return dr(rewards, kept, q_logged, q_policy)
