"""Options that were found to learn one environment each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PRESETS"]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "cartpole": {
        "run.env": "CartPole-v1",
        "run.steps": 100_000,
        "sampling.num_envs": 8,
        "algorithm.n_steps": 32,
        "algorithm.batch_size": 256,
        "algorithm.n_epochs": 20,
        "algorithm.gamma": 0.98,
        "algorithm.gae_lambda": 0.8,
        "algorithm.learning_rate": [[0, 0.001], [100_000, 0.0]],
        "algorithm.clip_range": [[0, 0.2], [100_000, 0.0]],
    },
    "pendulum": {
        "run.env": "Pendulum-v1",
        "run.steps": 100_000,
        "sampling.num_envs": 4,
        "algorithm.n_steps": 1024,
        "algorithm.batch_size": 64,
        "algorithm.n_epochs": 10,
        "algorithm.gamma": 0.9,
        "algorithm.gae_lambda": 0.95,
        "algorithm.learning_rate": 0.001,
    },
    "halfcheetah": {
        "run.env": "HalfCheetah-v5",
        "run.steps": 1_000_000,
        "sampling.num_envs": 1,
        "env.normalize_observation": True,
        "env.normalize_reward": True,
        "env.normalize_gamma": 0.98,
        "algorithm.n_steps": 512,
        "algorithm.batch_size": 64,
        "algorithm.n_epochs": 20,
        "algorithm.gamma": 0.98,
        "algorithm.gae_lambda": 0.92,
        "algorithm.learning_rate": 2.0633e-5,
        "algorithm.ent_coef": 0.000401762,
        "algorithm.vf_coef": 0.58096,
        "algorithm.clip_range": 0.1,
        "algorithm.net_arch": [256, 256],
        "algorithm.activation": "relu",
        "algorithm.ortho_init": False,
        "algorithm.std_init": 0.135335,
        "learner.max_grad_norm": 0.8,
    },
}
"""CartPole's and HalfCheetah's are those of RL Baselines3 Zoo, less what is not in this plugin."""
