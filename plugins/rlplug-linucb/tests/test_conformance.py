"""The bandits of this package do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance, Subject
from rlplug.testing.checks import check_named


class TestLinUCB(AlgorithmConformance):
    name = "linucb"


# LinUCB shows for each change how all of them act.
ACTING = dict.fromkeys(
    (
        *("inference_is_not_random", "masks_are_respected", "finds_the_best_arm_that_is_present"),
        *("solves_known_best_arm", "solves_masked_best_action"),
    ),
    pytest.mark.long,
)


class TestHybridLinUCB(AlgorithmConformance):
    name = "linucb"
    options = {"model": "hybrid", "update_every": 3, "refresh_every": 8}
    marks = ACTING


class TestLinTS(AlgorithmConformance):
    name = "lints"


class TestNeuralLinUCB(AlgorithmConformance):
    name = "neural-linucb"
    # It has no target network: a search for one takes long.
    marks = {**ACTING, "targets_follow": pytest.mark.long}


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_probabilities_that_are_estimated_are_not_held_to_be_exact(seed: int) -> None:
    subject = Subject.of(
        "lints", seed=seed, options={"model": "joint"}, variants=[{"model": "hybrid"}]
    )
    check_named("log_probs_are_those_of_actions")(subject)
