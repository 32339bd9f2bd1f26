"""The bandits of this package do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance
from rlplug.testing.checks import CHECKS


class TestUCB1(AlgorithmConformance):
    name = "ucb1"


# UCB1 shows the rest for each change.
QUICKLY = {
    *("is_found_once", "builds_for_the_spaces_it_supports", "acting_is_repeatable"),
    *("every_parameter_learns", "weights_count_rows", "weights_count_rows"),
    *("equals_its_reference", "two_learners_stay_the_same", "state_is_complete"),
    *("every_option_has_an_effect", "every_option_has_an_effect", "masks_are_respected"),
    *("solves_known_best_arm",),
}
FOR_UCB1 = {check.name: pytest.mark.long for check in CHECKS if check.name not in QUICKLY}


class TestMetricUCB(AlgorithmConformance):
    name = "metric-ucb"
    marks = FOR_UCB1


class TestBetaThompson(AlgorithmConformance):
    name = "thompson"
    marks = FOR_UCB1


class TestGaussianThompson(AlgorithmConformance):
    name = "thompson"
    marks = FOR_UCB1
    options = {"distribution": "gaussian", "update_every": 3}


class TestEpsilonGreedy(AlgorithmConformance):
    name = "epsilon-greedy"
    marks = FOR_UCB1


class TestSoftmax(AlgorithmConformance):
    name = "softmax"
    marks = FOR_UCB1
