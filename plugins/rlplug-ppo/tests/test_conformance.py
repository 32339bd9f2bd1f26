"""PPO and A2C do what rlplug asks of every algorithm."""

from __future__ import annotations

from rlplug.testing import AlgorithmConformance

SMALL = {"n_steps": 16, "batch_size": 64, "n_epochs": 10, "learning_rate": 0.003}


class TestPPO(AlgorithmConformance):
    name = "ppo"
    options = SMALL
    variants = (
        {"kl_coef": 0.2, "target_kl": 0.5, "clip_range_vf": 0.2},
        {"memory": "gru", "memory_size": 8, "truncated_bptt": 4, "squash": True},
        {"state_dependent_std": True, "shared_encoder": True},
    )


class TestA2C(AlgorithmConformance):
    name = "a2c"
    options = {"n_steps": 1, "learning_rate": 0.003}
