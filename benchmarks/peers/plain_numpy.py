"""LinUCB as a person would write it with NumPy: Sherman-Morrison and nothing else."""

from __future__ import annotations

import math

import numpy
from measure import ALPHA, L2_LAMBDA, measure
from numpy.typing import NDArray
from problem import Floats


class Disjoint:
    """A regression per arm."""

    def __init__(self, arms: int, features: int) -> None:
        self._inverse = numpy.stack([numpy.eye(features) / L2_LAMBDA] * arms)
        self._sums = numpy.zeros((arms, features))
        self._theta = numpy.zeros((arms, features))

    def choose(self, seen: Floats) -> int:
        x = seen[0]
        self._products = self._inverse @ x
        self._spread = self._products @ x
        return int((self._theta @ x + ALPHA * numpy.sqrt(self._spread)).argmax())

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        x, product = seen[0], self._products[arm]
        self._inverse[arm] -= numpy.outer(product, product / (1.0 + self._spread[arm]))
        self._sums[arm] += reward * x
        self._theta[arm] = self._inverse[arm] @ self._sums[arm]


class Joint:
    """One regression for all arms."""

    def __init__(self, arms: int, features: int) -> None:
        self._inverse = numpy.eye(features) / L2_LAMBDA
        self._sums = numpy.zeros(features)
        self._theta = numpy.zeros(features)

    def choose(self, seen: Floats) -> int:
        self._products = seen @ self._inverse
        self._spread = (self._products * seen).sum(1)
        return int((seen @ self._theta + ALPHA * numpy.sqrt(self._spread)).argmax())

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        product = self._products[arm]
        self._inverse -= numpy.outer(product, product / (1.0 + self._spread[arm]))
        self._sums += reward * seen[arm]
        self._theta = self._inverse @ self._sums


class Fitted:
    """Sums of each arm's rows in float32, then one solution for each."""

    most_rows = 1_000_000_000

    def __init__(self, arms: int, features: int) -> None:
        self._arms, self._features = arms, features

    def fit(self, contexts: Floats, actions: NDArray[numpy.int64], rewards: Floats) -> None:
        shape = (self._arms, self._features)
        self._theta, self._inverse = numpy.empty(shape), numpy.empty((*shape, self._features))
        for arm in range(self._arms):
            rows = numpy.flatnonzero(actions == arm)
            x, y = contexts[rows].astype(numpy.float32), rewards[rows].astype(numpy.float32)
            matrix = L2_LAMBDA * numpy.eye(self._features) + x.T @ x
            self._inverse[arm] = numpy.linalg.inv(matrix)
            self._theta[arm] = self._inverse[arm] @ (x.T @ y)

    def choose(self, seen: Floats) -> int:
        x = seen[0]
        bounds = [
            theta @ x + ALPHA * math.sqrt(x @ inverse @ x)
            for theta, inverse in zip(self._theta, self._inverse, strict=True)
        ]
        return int(numpy.argmax(bounds))


if __name__ == "__main__":
    measure("numpy", fixed=Disjoint, featured=Joint, logged=Fitted)
