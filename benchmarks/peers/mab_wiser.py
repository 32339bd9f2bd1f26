"""MABWiser's LinUCB: disjoint; it solves anew with every row."""

from __future__ import annotations

from typing import Any

import numpy
from mabwiser.mab import (  # type: ignore[import-not-found] # in its own environment
    MAB,
    LearningPolicy,
)
from measure import ALPHA, L2_LAMBDA, measure
from numpy.typing import NDArray
from problem import Floats


class Disjoint:
    """`predict` and `partial_fit`; the first row is a `fit`, before which it cannot be asked."""

    def __init__(self, arms: int, features: int) -> None:
        self._mab = _mab(arms)
        self._fitted = False

    def choose(self, seen: Floats) -> int:
        return int(self._mab.predict(seen)) if self._fitted else 0

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        take = self._mab.partial_fit if self._fitted else self._mab.fit
        take(numpy.array([arm]), numpy.array([reward]), seen)
        self._fitted = True


class Fitted:
    """`fit`."""

    most_rows = 1_000_000_000

    def __init__(self, arms: int, features: int) -> None:
        self._mab = _mab(arms)

    def fit(self, contexts: Floats, actions: NDArray[numpy.int64], rewards: Floats) -> None:
        self._mab.fit(actions, rewards, contexts)

    def choose(self, seen: Floats) -> int:
        return int(self._mab.predict(seen))


def _mab(arms: int) -> Any:
    return MAB(list(range(arms)), LearningPolicy.LinUCB(alpha=ALPHA, l2_lambda=L2_LAMBDA), seed=0)


if __name__ == "__main__":
    measure("mabwiser", fixed=Disjoint, logged=Fitted)
