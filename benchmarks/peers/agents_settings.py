"""What rlplug and RLlib are set to where several agents share a module."""

from __future__ import annotations

from typing import Any

from mpe2 import simple_spread_v3
from walkers import Many

__all__ = ["ENVIRONMENTS", "NUM_ENVS", "SETTINGS"]

NUM_ENVS = 8
ENVIRONMENTS: dict[str, Any] = {"walkers": Many, "spread": simple_spread_v3.parallel_env}
SETTINGS: dict[str, Any] = {
    "n_steps": 125,
    "batch_size": 500,
    "n_epochs": 10,
    "net_arch": [64, 64],
    "learning_rate": 7e-4,
    "gamma": 0.95,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
