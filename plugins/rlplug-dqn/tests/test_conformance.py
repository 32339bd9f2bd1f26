"""DQN and Rainbow do what rlplug asks of every algorithm."""

from __future__ import annotations

from rlplug.testing import AlgorithmConformance


class TestDQN(AlgorithmConformance):
    name = "dqn"


class TestRainbow(AlgorithmConformance):
    name = "rainbow"
    options = {"v_min": -2.0, "v_max": 12.0, "adam_eps": 1e-6, "gradient_steps": 2}
    variants = ({"distributional": False, "quantile": True},)
