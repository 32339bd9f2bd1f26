"""Open Bandit Pipeline's LinUCB: disjoint; its width is called epsilon, its ridge is 1."""

from __future__ import annotations

import numpy
from measure import ALPHA, measure
from numpy.typing import NDArray
from obp.policy import LinUCB  # type: ignore[import-not-found] # in its own environment
from problem import Floats


class Disjoint:
    """`select_action` and `update_params`, as its simulator calls them."""

    def __init__(self, arms: int, features: int) -> None:
        self._policy = LinUCB(dim=features, n_actions=arms, epsilon=ALPHA, random_state=0)

    def choose(self, seen: Floats) -> int:
        return int(self._policy.select_action(seen)[0])

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        self._policy.update_params(action=arm, reward=reward, context=seen)


class Fitted:
    """It has no fit: rows one by one, with its matrices copied once, after the last."""

    most_rows = 50_000

    def __init__(self, arms: int, features: int) -> None:
        self._arms, self._features = arms, features

    def fit(self, contexts: Floats, actions: NDArray[numpy.int64], rewards: Floats) -> None:
        self._policy = LinUCB(
            dim=self._features, n_actions=self._arms, epsilon=ALPHA, batch_size=len(rewards)
        )
        update = self._policy.update_params
        for row, (arm, reward) in enumerate(zip(actions.tolist(), rewards.tolist(), strict=True)):
            update(action=arm, reward=reward, context=contexts[row : row + 1])

    def choose(self, seen: Floats) -> int:
        return int(self._policy.select_action(seen)[0])


if __name__ == "__main__":
    measure("obp", fixed=Disjoint, logged=Fitted)
