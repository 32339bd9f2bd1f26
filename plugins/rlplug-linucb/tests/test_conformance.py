"""The bandits of this package do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance, Subject
from rlplug.testing.checks import CHECKS, check_named


class TestLinUCB(AlgorithmConformance):
    name = "linucb"


# LinUCB shows the rest for each change.
QUICKLY = {
    *("is_found_once", "builds_for_the_spaces_it_supports", "acting_is_repeatable"),
    *("every_parameter_learns", "weights_count_rows", "weights_count_rows"),
    *("equals_its_reference", "two_learners_stay_the_same", "state_is_complete"),
    *("every_option_has_an_effect", "every_option_has_an_effect"),
    *("solves_reward_by_observation_and_action",),
}
FOR_LINUCB = {check.name: pytest.mark.long for check in CHECKS if check.name not in QUICKLY}


class TestHybridLinUCB(AlgorithmConformance):
    name = "linucb"
    options = {"model": "hybrid", "update_every": 3, "refresh_every": 8}
    marks = FOR_LINUCB


class TestLinTS(AlgorithmConformance):
    name = "lints"
    marks = FOR_LINUCB


class TestNeuralLinUCB(AlgorithmConformance):
    name = "neural-linucb"
    marks = FOR_LINUCB


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_probabilities_that_are_estimated_are_not_held_to_be_exact(seed: int) -> None:
    subject = Subject.of(
        "lints", seed=seed, options={"model": "joint"}, variants=[{"model": "hybrid"}]
    )
    check_named("log_probs_are_those_of_actions")(subject)
