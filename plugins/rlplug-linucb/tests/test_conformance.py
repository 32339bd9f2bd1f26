"""The bandits of this package do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance, Subject
from rlplug.testing.checks import check_named


class TestLinUCB(AlgorithmConformance):
    name = "linucb"


class TestHybridLinUCB(AlgorithmConformance):
    name = "linucb"
    options = {"model": "hybrid", "update_every": 3, "refresh_every": 8}


class TestLinTS(AlgorithmConformance):
    name = "lints"


class TestNeuralLinUCB(AlgorithmConformance):
    name = "neural-linucb"


@pytest.mark.parametrize(
    "seed", [3, pytest.param(4, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.long)]
)
def test_probabilities_that_are_estimated_are_not_held_to_be_exact(seed: int) -> None:
    subject = Subject.of(
        "lints", seed=seed, options={"model": "joint"}, variants=[{"model": "hybrid"}]
    )
    check_named("log_probs_are_those_of_actions")(subject)
