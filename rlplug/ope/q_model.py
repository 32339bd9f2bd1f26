"""A model of action values for episodes: least-squares fitted Q (LSTD-Q)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
from numpy.typing import NDArray

from rlplug.ope.estimators import Floats

__all__ = ["MAX_FEATURES", "fit_q", "state_features"]

_ROWS = 4096
"""Rows whose features are held at a time."""

_QUADRATIC = 300
"""Features of a state up to which products are among them."""

MAX_FEATURES = 2000
"""Features of all actions together beyond which no model is fitted."""


def state_features(observations: Floats, times: Floats, most: int) -> Floats | None:
    """The constant, standardized numbers and the time (0 to 1), and their products.

    Products are left out where there would be more than `most` features; None: without, too.
    """
    deviation = observations.std(0)
    scaled = (observations - observations.mean(0)) / numpy.where(deviation > 0, deviation, 1.0)
    x = numpy.concatenate([scaled[:, deviation > 0], times[:, None]], axis=1)
    if 1 + x.shape[1] > most:
        return None
    parts = [numpy.ones((len(x), 1)), x]
    rows, columns = numpy.triu_indices(x.shape[1])
    if 1 + x.shape[1] + len(rows) <= min(most, _QUADRATIC):
        parts.append(x[:, rows] * x[:, columns])
    return numpy.concatenate(parts, axis=1)


def fit_q(
    features: Floats,
    actions: NDArray[numpy.int64],
    rewards: Floats,
    ended: NDArray[numpy.bool_],
    shares: Floats,
    folds: NDArray[numpy.int64],
    *,
    gamma: float = 1.0,
    l2: float = 1.0,
) -> tuple[Floats, Floats]:
    """Q of each row's action and V of the policy with these `shares`, by models of the other folds.

    Rows of an episode are consecutive, and an `ended` row has no next one. The values solve Σ x (r
    + γ x'·θ − x·θ) = l2 θ, where x are the features of the state in the place of the action, and x'
    those that the policy expects in the next row (Lagoudakis and Parr 2003).
    """
    rows, size = len(actions), shares.shape[1] * features.shape[1]
    logged = numpy.zeros(shares.shape)
    logged[numpy.arange(rows), actions] = 1.0

    def spread(weights: Floats, part: NDArray[numpy.int64]) -> Floats:
        found: Floats = weights[part][:, :, None] * features[part][:, None, :]
        return found.reshape(len(part), size)

    present = numpy.unique(folds)
    left, right = numpy.zeros((len(present), size, size)), numpy.zeros((len(present), size))
    every = numpy.arange(rows)
    for index, fold in enumerate(present):
        for part in _parts(every[folds == fold]):
            x, following = spread(logged, part), spread(shares, numpy.minimum(part + 1, rows - 1))
            following[ended[part]] = 0.0
            left[index] += x.T @ (x - gamma * following)
            right[index] += x.T @ rewards[part]
    q_logged, q_policy = numpy.empty(rows), numpy.empty(rows)
    for fold in present:
        others = present != fold if len(present) > 1 else present == fold
        theta = numpy.linalg.solve(left[others].sum(0) + l2 * numpy.eye(size), right[others].sum(0))
        for part in _parts(every[folds == fold]):
            q_logged[part] = spread(logged, part) @ theta
            q_policy[part] = spread(shares, part) @ theta
    return q_logged, q_policy


def _parts(places: NDArray[numpy.int64]) -> Iterator[NDArray[numpy.int64]]:
    for start in range(0, len(places), _ROWS):
        yield places[start : start + _ROWS]
