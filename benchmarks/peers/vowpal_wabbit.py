"""Vowpal Wabbit: no LinUCB, but SquareCB on weights learned by gradient steps.

Its cost grows with the features, not their square: it is here as what a person may pick instead.
"""

from __future__ import annotations

import random
from itertools import accumulate

import numpy
from measure import measure
from numpy.typing import NDArray
from problem import Floats
from vowpalwabbit import Workspace  # type: ignore[import-not-found] # in its own environment

# The rate and the scale that lost least among a few tried on the streams of this benchmark.
EXPLORATION = "--squarecb --gamma_scale 200 -l 2 --cb_type mtr --noconstant --quiet"


class Disjoint:
    """Weights of its own for each of `--cb_explore` arms; rows are lines of its text format."""

    def __init__(self, arms: int, features: int) -> None:
        self._workspace = Workspace(f"--cb_explore {arms} {EXPLORATION}")
        self._names = _names(features)
        self._random = random.Random(0)

    def choose(self, seen: Floats) -> int:
        self._line = self._names.format(*seen[0].tolist())
        self._chances = self._workspace.predict("| " + self._line)
        return _drawn(self._random, self._chances)

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        label = f"{arm + 1}:{-reward:.6g}:{self._chances[arm]:.6g}"
        self._workspace.learn(f"{label} | {self._line}")


class Joint:
    """Arms that bring features: `--cb_explore_adf`."""

    def __init__(self, arms: int, features: int) -> None:
        self._workspace = Workspace(f"--cb_explore_adf {EXPLORATION}")
        self._names = "| " + _names(features)
        self._random = random.Random(0)

    def choose(self, seen: Floats) -> int:
        self._lines = [self._names.format(*row) for row in seen.tolist()]
        self._chances = self._workspace.predict("\n".join(self._lines))
        return _drawn(self._random, self._chances)

    def learn(self, seen: Floats, arm: int, reward: float) -> None:
        label = f"0:{-reward:.6g}:{self._chances[arm]:.6g} "
        self._lines[arm] = label + self._lines[arm]
        self._workspace.learn("\n".join(self._lines))


class Fitted:
    """Rows one by one, each with the chance 1 / arms that the log gave it."""

    most_rows = 200_000

    def __init__(self, arms: int, features: int) -> None:
        self._arms = arms
        self._workspace = Workspace(f"--cb_explore {arms} {EXPLORATION}")
        self._names = "| " + _names(features)

    def fit(self, contexts: Floats, actions: NDArray[numpy.int64], rewards: Floats) -> None:
        learn, chance = self._workspace.learn, 1.0 / self._arms
        for row, (arm, reward) in enumerate(zip(actions.tolist(), rewards.tolist(), strict=True)):
            line = self._names.format(*contexts[row].tolist())
            learn(f"{arm + 1}:{-reward:.6g}:{chance} {line}")

    def choose(self, seen: Floats) -> int:
        return int(numpy.argmax(self._workspace.predict(self._names.format(*seen[0].tolist()))))


def _names(features: int) -> str:
    # Bare numbers would be taken as places in its weights, where those of different arms collide.
    return " ".join(f"f{feature}:{{:.6g}}" for feature in range(features))


def _drawn(source: random.Random, chances: list[float]) -> int:
    sums = list(accumulate(chances))
    level = source.random() * sums[-1]
    return next(arm for arm, total in enumerate(sums) if total >= level)


if __name__ == "__main__":
    measure("vowpalwabbit", fixed=Disjoint, featured=Joint, logged=Fitted)
