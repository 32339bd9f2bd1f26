"""rlplug's LinUCB module alone, as a person's own service would use it."""

from __future__ import annotations

import numpy
from measure import ALPHA, L2_LAMBDA, measure
from numpy.typing import NDArray
from problem import Floats
from rlplug_linucb import Layout, LinUCBConfig, LinUCBModule


class Disjoint:
    """`choose` and `update` on contexts."""

    def __init__(self, arms: int, features: int) -> None:
        self._module = LinUCBModule(Layout(num_arms=arms, context_dim=features), _config())
        self._random = numpy.random.default_rng(0)

    def choose(self, seen: Floats) -> int:
        self._arms = self._module.choose(seen, self._random)
        return int(self._arms[0])

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        self._module.update(seen, self._arms, numpy.array([reward]))


class Joint:
    """The same on features of arms."""

    def __init__(self, arms: int, features: int) -> None:
        self._module = LinUCBModule(Layout(num_arms=arms, arm_dim=features), _config())
        self._random = numpy.random.default_rng(0)

    def choose(self, seen: Floats) -> int:
        self._arms = self._module.choose(seen[None], self._random)
        return int(self._arms[0])

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        self._module.update(seen[None], self._arms, numpy.array([reward]))


class Fitted(Disjoint):
    """All rows in one `update`."""

    most_rows = 1_000_000_000

    def fit(self, contexts: Floats, actions: NDArray[numpy.int64], rewards: Floats) -> None:
        self._module.update(contexts, actions, rewards)


def _config() -> LinUCBConfig:
    return LinUCBConfig(alpha=ALPHA, l2_lambda=L2_LAMBDA)


if __name__ == "__main__":
    measure("rlplug-linucb", fixed=Disjoint, featured=Joint, logged=Fitted)
