"""Off-policy estimators of episodes: what another policy would have earned per episode.

Symbols: r_t, the logged reward; ρ_t = π(a_t|s_t) / p_t, the importance ratio of a step; W_t =
ρ_0 … ρ_t, the weight of an episode up to it; Q and V, a model's values of the logged action and of
the policy. All arrays are (episodes, steps); after the end of an episode rewards and values are 0,
and its weight stays what it was.
"""

from __future__ import annotations

import math

import numpy

from rlplug.ope.estimators import Floats, Terms

__all__ = [
    "cumulative_log_weights",
    "per_decision_is",
    "per_decision_wis",
    "sequential_dr",
    "trajectory_is",
    "trajectory_wis",
    "weighted_dr",
]

_LARGEST = 700.0
"""Logarithm above which a weight would not be a number."""


def cumulative_log_weights(log_ratios: Floats, maximum: float = 0.0) -> Floats:
    """log W_t of the logarithms of ρ_t, clipped to a largest weight unless it is 0."""
    limit = math.log(maximum) if maximum else _LARGEST
    return numpy.minimum(numpy.cumsum(log_ratios, axis=1), limit)


def trajectory_is(rewards: Floats, log_weights: Floats, gamma: float = 1.0) -> Terms:
    """Ordinary importance sampling: mean of W_T Σ γ^t r_t."""
    return Terms(numerator=numpy.exp(log_weights[:, -1]) * _returns(rewards, gamma))


def trajectory_wis(rewards: Floats, log_weights: Floats, gamma: float = 1.0) -> Terms:
    """Weighted importance sampling: mean of W_T Σ γ^t r_t over the mean of W_T."""
    weights = _relative(log_weights[:, -1])
    return Terms(numerator=weights * _returns(rewards, gamma), denominator=weights)


def per_decision_is(rewards: Floats, log_weights: Floats, gamma: float = 1.0) -> Terms:
    """Per-decision importance sampling: mean of Σ γ^t W_t r_t (Precup et al. 2000)."""
    return Terms(numerator=_returns(numpy.exp(log_weights) * rewards, gamma))


def per_decision_wis(rewards: Floats, log_weights: Floats, gamma: float = 1.0) -> Terms:
    """Σ γ^t of the mean of W_t r_t over the mean of W_t (CWPDIS, Thomas 2015)."""
    weights = _relative(log_weights)
    return Terms(numerator=_discounts(rewards, gamma) * weights * rewards, denominator=weights)


def sequential_dr(
    rewards: Floats, log_weights: Floats, q_logged: Floats, q_policy: Floats, gamma: float = 1.0
) -> Terms:
    """Doubly robust: mean of Σ γ^t (W_{t−1} V + W_t (r_t − Q)) (Jiang and Li 2016)."""
    weights = numpy.exp(log_weights)
    steps = _shifted(weights) * q_policy + weights * (rewards - q_logged)
    return Terms(numerator=_returns(steps, gamma))


def weighted_dr(
    rewards: Floats, log_weights: Floats, q_logged: Floats, q_policy: Floats, gamma: float = 1.0
) -> Terms:
    """The same with weights over their mean at each step (WDR, Thomas and Brunskill 2016)."""
    weights, discounts = _relative(log_weights), _discounts(rewards, gamma)
    before = _shifted(weights)
    return Terms(
        numerator=numpy.concatenate(
            [discounts * before * q_policy, discounts * weights * (rewards - q_logged)], axis=1
        ),
        denominator=numpy.concatenate([before, weights], axis=1),
    )


def _discounts(rewards: Floats, gamma: float) -> Floats:
    return gamma ** numpy.arange(rewards.shape[1], dtype=numpy.float64)


def _returns(rewards: Floats, gamma: float) -> Floats:
    found: Floats = rewards @ _discounts(rewards, gamma)
    return found


def _shifted(weights: Floats) -> Floats:
    """W_{t−1}; before the first step, it is 1."""
    return numpy.concatenate([numpy.ones((len(weights), 1)), weights[:, :-1]], axis=1)


def _relative(log_weights: Floats) -> Floats:
    """Weights over the largest one of their step: only their proportions matter."""
    largest = log_weights.max(0)
    return numpy.exp(log_weights - numpy.where(numpy.isfinite(largest), largest, 0.0))
