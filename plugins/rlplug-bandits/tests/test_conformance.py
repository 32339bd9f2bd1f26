"""The bandits of this package do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance


class TestUCB1(AlgorithmConformance):
    name = "ucb1"


class TestMetricUCB(AlgorithmConformance):
    name = "metric-ucb"


class TestBetaThompson(AlgorithmConformance):
    name = "thompson"
    # The other distribution draws enough actions for each change.
    marks = {"log_probs_are_those_of_actions": pytest.mark.long}


class TestGaussianThompson(AlgorithmConformance):
    name = "thompson"
    options = {"distribution": "gaussian", "update_every": 3}


class TestEpsilonGreedy(AlgorithmConformance):
    name = "epsilon-greedy"


class TestSoftmax(AlgorithmConformance):
    name = "softmax"
