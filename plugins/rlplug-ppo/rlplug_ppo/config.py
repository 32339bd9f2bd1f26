"""The options of PPO and A2C, and the presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlplug.config import above, at_least, between, option
from rlplug.nn import ActorCriticOptions

__all__ = ["PRESETS", "A2CConfig", "OnPolicyOptions", "PPOConfig"]


@attrs.frozen(kw_only=True)
class OnPolicyOptions(ActorCriticOptions):
    """Options shared by PPO and A2C."""

    gamma: float = option(0.99, "Weight of the next state's value.", between(0, 1))
    vf_coef: float = option(0.5, "Weight of the value loss, the mean squared error.", at_least(0))
    ent_coef: float = option(
        0.0, "Weight of the policy's entropy, which is rewarded.", at_least(0), schedulable=True
    )
    bootstrap_truncated: bool = option(
        True, "Episodes cut by a time limit go on in value; false takes the limit for a failure."
    )
    truncated_bptt: int = option(
        0,
        "With memory: steps through which gradients flow back; 0: to the start of the episode "
        "or of the rollout.",
        at_least(0),
    )

    def __attrs_post_init__(self) -> None:
        if self.truncated_bptt and self.memory == "none":
            raise ValueError(
                "truncated_bptt has no effect without memory: "
                "set memory to 'lstm' or 'gru', or leave truncated_bptt out"
            )


@attrs.frozen(kw_only=True)
class PPOConfig(OnPolicyOptions):
    """Options of PPO."""

    learning_rate: float = option(3e-4, "Step size of Adam.", at_least(0), schedulable=True)
    adam_eps: float = option(1e-5, "Keeps Adam's steps small where gradients are.", above(0))
    n_steps: int = option(
        128, "Steps of each environment that make one rollout, and one update.", at_least(1)
    )
    batch_size: int = option(
        256, "Rows of a minibatch; the last of a pass takes what is left.", at_least(1)
    )
    n_epochs: int = option(10, "Passes over each rollout.", at_least(1))
    gae_lambda: float = option(
        0.95, "How far advantages look ahead: 0 one step, 1 to the end.", between(0, 1)
    )
    normalize_advantage: bool = option(
        True, "Bring the advantages of each minibatch to mean 0 and deviation 1."
    )
    clip_range: float = option(
        0.2,
        "How far the probability ratio may leave 1 before its gradient is cut.",
        at_least(0),
        schedulable=True,
    )
    clip_range_vf: float = option(
        0.0,
        "How far a value may leave its old one before its gradient is cut; 0: as far as it likes.",
        at_least(0),
        schedulable=True,
    )
    target_kl: float = option(
        0.0,
        "End the passes over a rollout once the policy has moved 1.5 times so far; 0: never.",
        at_least(0),
    )
    kl_coef: float = option(
        0.0, "First weight of a penalty on moving the policy, adapted; 0: none.", at_least(0)
    )
    kl_target: float = option(
        0.01, "Divergence per update towards which that weight is adapted.", above(0)
    )


@attrs.frozen(kw_only=True)
class A2CConfig(OnPolicyOptions):
    """Options of A2C."""

    learning_rate: float = option(7e-4, "Step size of RMSprop.", at_least(0), schedulable=True)
    rmsprop_eps: float = option(1e-5, "Keeps RMSprop's steps small where gradients are.", above(0))
    n_steps: int = option(
        5, "Steps of each environment that make one rollout, and one update.", at_least(1)
    )
    gae_lambda: float = option(
        1.0, "How far advantages look ahead: 0 one step, 1 to the end.", between(0, 1)
    )
    normalize_advantage: bool = option(
        False, "Bring the advantages of each rollout to mean 0 and deviation 1."
    )


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
"""Those of CartPole and HalfCheetah are from RL Baselines3 Zoo."""
