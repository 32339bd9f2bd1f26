"""The bandits of this package do what rlplug asks of every algorithm."""

from __future__ import annotations

from rlplug.testing import AlgorithmConformance


class TestLinUCB(AlgorithmConformance):
    name = "linucb"


class TestHybridLinUCB(AlgorithmConformance):
    name = "linucb"
    options = {"model": "hybrid", "update_every": 3, "refresh_every": 8}


class TestLinTS(AlgorithmConformance):
    name = "lints"


class TestNeuralLinUCB(AlgorithmConformance):
    name = "neural-linucb"
