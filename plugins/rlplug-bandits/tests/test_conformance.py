"""The bandits of this package do what rlplug asks of every algorithm."""

from __future__ import annotations

from rlplug.testing import AlgorithmConformance


class TestUCB1(AlgorithmConformance):
    name = "ucb1"


class TestMetricUCB(AlgorithmConformance):
    name = "metric-ucb"


class TestBetaThompson(AlgorithmConformance):
    name = "thompson"


class TestGaussianThompson(AlgorithmConformance):
    name = "thompson"
    options = {"distribution": "gaussian", "update_every": 3}


class TestEpsilonGreedy(AlgorithmConformance):
    name = "epsilon-greedy"


class TestSoftmax(AlgorithmConformance):
    name = "softmax"
