"""River: its disjoint LinUCB, and its Bayesian regression where it has no bandit for the part.

It has no width: the bound is one standard deviation of the prediction, with noise of variance 1.
"""

from __future__ import annotations

import numpy
from measure import L2_LAMBDA, measure
from numpy.typing import NDArray
from problem import Floats
from river.bandit import LinUCBDisjoint  # type: ignore[import-not-found] # in its own environment
from river.linear_model import (  # type: ignore[import-not-found] # in its own environment
    BayesianLinearRegression,
)


class Disjoint:
    """`pull` and `update`; contexts are dicts, made once for both."""

    def __init__(self, arms: int, features: int) -> None:
        self._policy = LinUCBDisjoint(alpha=L2_LAMBDA, beta=1.0, seed=0)
        self._arms = list(range(arms))

    def choose(self, seen: Floats) -> int:
        self._context = dict(enumerate(seen[0].tolist()))
        return int(self._policy.pull(self._arms, self._context))

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        self._policy.update(arm, self._context, reward)


class Joint:
    """One of its regressions for all arms."""

    def __init__(self, arms: int, features: int) -> None:
        self._regression = BayesianLinearRegression(alpha=L2_LAMBDA, beta=1.0)

    def choose(self, seen: Floats) -> int:
        self._rows = [dict(enumerate(row)) for row in seen.tolist()]
        return int(numpy.argmax([_bound(self._regression, row) for row in self._rows]))

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        self._regression.learn_one(self._rows[arm], reward)


class Fitted:
    """One of its regressions per arm, each given all its rows at once."""

    most_rows = 1_000_000_000

    def __init__(self, arms: int, features: int) -> None:
        self._regressions = [BayesianLinearRegression(alpha=L2_LAMBDA) for _ in range(arms)]

    def fit(self, contexts: Floats, actions: NDArray[numpy.int64], rewards: Floats) -> None:
        import pandas  # type: ignore[import-untyped] # in its own environment

        for arm, regression in enumerate(self._regressions):
            rows = numpy.flatnonzero(actions == arm)
            table = pandas.DataFrame(contexts[rows], columns=range(contexts.shape[1]), copy=False)
            regression.learn_many(table, pandas.Series(rewards[rows]))

    def choose(self, seen: Floats) -> int:
        context = dict(enumerate(seen[0].tolist()))
        return int(numpy.argmax([_bound(one, context) for one in self._regressions]))


def _bound(regression: BayesianLinearRegression, row: dict[int, float]) -> float:
    expected = regression.predict_one(row, with_dist=True)
    return float(expected.mu + expected.sigma)


if __name__ == "__main__":
    measure("river", fixed=Disjoint, featured=Joint, logged=Fitted)
