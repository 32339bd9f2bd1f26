"""contextualbandits: its LinUCB, and for arms with features the regression that it is made of."""

from __future__ import annotations

from typing import Any

import numpy
from contextualbandits.linreg import (  # type: ignore[import-not-found] # in its own environment
    LinearRegression,
)
from contextualbandits.online import (  # type: ignore[import-not-found] # in its own environment
    LinUCB,
)
from measure import ALPHA, L2_LAMBDA, measure
from numpy.typing import NDArray
from problem import Floats


class Disjoint:
    """Rank-one updates (`sm`), in float32 as by default."""

    def __init__(self, arms: int, features: int) -> None:
        self._policy = _policy(arms, "sm")

    def choose(self, seen: Floats) -> int:
        return int(self._policy.predict(seen)[0])

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        self._policy.partial_fit(seen, numpy.array([arm]), numpy.array([reward]))


class Joint:
    """One of its regressions for all arms."""

    def __init__(self, arms: int, features: int) -> None:
        self._regression = LinearRegression(lambda_=L2_LAMBDA, fit_intercept=False, method="sm")
        # It cannot be asked before it has seen a row: one of weight zero teaches nothing.
        self._regression.partial_fit(
            numpy.zeros((1, features)), numpy.zeros(1), sample_weight=numpy.zeros(1)
        )

    def choose(self, seen: Floats) -> int:
        return int(self._regression.predict_ucb(seen, alpha=ALPHA).argmax())

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        self._regression.partial_fit(seen[arm : arm + 1], numpy.array([reward]))


class Fitted:
    """Cholesky (`chol`), which its documentation names for many rows."""

    most_rows = 1_000_000_000

    def __init__(self, arms: int, features: int) -> None:
        self._policy = _policy(arms, "chol")

    def fit(self, contexts: Floats, actions: NDArray[numpy.int64], rewards: Floats) -> None:
        self._policy.fit(contexts, actions, rewards)

    def choose(self, seen: Floats) -> int:
        return int(self._policy.predict(seen)[0])


def _policy(arms: int, method: str) -> Any:
    return LinUCB(
        nchoices=arms,
        alpha=ALPHA,
        lambda_=L2_LAMBDA,
        fit_intercept=False,
        method=method,
        random_state=1,
    )


if __name__ == "__main__":
    measure("contextualbandits", fixed=Disjoint, featured=Joint, logged=Fitted)
