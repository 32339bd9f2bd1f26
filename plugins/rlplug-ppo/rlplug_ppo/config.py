"""Options of PPO and A2C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from rlplug.config import above, at_least, between, option
from rlplug.nn import ActorCriticOptions

__all__ = ["PRESETS", "A2CConfig", "OnPolicyOptions", "PPOConfig"]


@attrs.frozen(kw_only=True)
class OnPolicyOptions(ActorCriticOptions):
    """Options that PPO and A2C share."""

    gamma: float = option(0.99, "Discount factor.", between(0, 1))
    vf_coef: float = option(0.5, "Coefficient of the value loss (mean squared error).", at_least(0))
    ent_coef: float = option(
        0.0, "Coefficient of the entropy bonus; 0 disables it.", at_least(0), schedulable=True
    )
    bootstrap_truncated: bool = option(
        True,
        "Bootstrap from the final value of truncated episodes; false treats them as terminated.",
    )
    advantages: Literal["gae", "vtrace"] = option(
        "gae",
        "Advantages and value targets: gae; vtrace corrects for rows that older weights chose.",
    )
    rho_bar: float = option(
        1.0,
        "V-trace: largest importance ratio of TD errors, and of the policy loss of A2C.",
        above(0),
    )
    c_bar: float = option(
        1.0, "V-trace: largest importance ratio of what follows a step.", at_least(0)
    )
    truncated_bptt: int = option(
        0,
        "With memory: steps of truncated backpropagation through time; 0: back to the start of the "
        "episode or rollout.",
        at_least(0),
    )

    @property
    def truncation(self) -> tuple[float, float] | None:
        """The largest importance ratios of V-trace, (rho_bar, c_bar); None: no V-trace."""
        return (self.rho_bar, self.c_bar) if self.advantages == "vtrace" else None

    def __attrs_post_init__(self) -> None:
        if self.truncated_bptt and self.memory == "none":
            raise ValueError(
                "truncated_bptt needs a recurrent network, but memory is 'none': "
                "set memory to 'lstm' or 'gru', or leave truncated_bptt out"
            )


@attrs.frozen(kw_only=True)
class PPOConfig(OnPolicyOptions):
    """Options of PPO."""

    learning_rate: float = option(3e-4, "Adam learning rate.", at_least(0), schedulable=True)
    adam_eps: float = option(1e-5, "Adam eps, added to the denominator.", above(0))
    n_steps: int = option(128, "Steps per environment in each rollout.", at_least(1))
    batch_size: int = option(
        256, "Minibatch size; the last one of an epoch may be smaller.", at_least(1)
    )
    n_epochs: int = option(10, "Epochs over each rollout.", at_least(1))
    gae_lambda: float = option(
        0.95,
        "Lambda of generalized advantage estimation: 0 is one-step TD, 1 is Monte Carlo.",
        between(0, 1),
    )
    normalize_advantage: bool = option(
        True, "Normalize advantages per minibatch to mean 0 and standard deviation 1."
    )
    clip_range: float = option(
        0.2,
        "Clip range of the probability ratio.",
        at_least(0),
        schedulable=True,
    )
    clip_range_vf: float = option(
        0.0,
        "Value clip range; 0 disables.",
        at_least(0),
        schedulable=True,
    )
    target_kl: float = option(
        0.0,
        "Stop the epochs over a rollout once the KL exceeds 1.5 times this; 0 disables.",
        at_least(0),
    )
    kl_coef: float = option(
        0.0, "Initial coefficient of the adaptive KL penalty; 0 disables it.", at_least(0)
    )
    kl_target: float = option(0.01, "Target KL per update of the adaptive KL penalty.", above(0))
    central_critic: bool = option(
        False,
        "With several agents, let the critic see the state of the environment, too (MAPPO); it has "
        "no memory.",
    )

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.central_critic and self.shared_encoder is True:
            raise ValueError(
                "central_critic has an encoder of its own, but shared_encoder is true: "
                "leave one of them out"
            )


@attrs.frozen(kw_only=True)
class A2CConfig(OnPolicyOptions):
    """Options of A2C."""

    learning_rate: float = option(7e-4, "RMSprop learning rate.", at_least(0), schedulable=True)
    rmsprop_eps: float = option(1e-5, "RMSprop eps, added to the denominator.", above(0))
    n_steps: int = option(5, "Steps per environment in each rollout.", at_least(1))
    gae_lambda: float = option(
        1.0,
        "Lambda of generalized advantage estimation: 0 is one-step TD, 1 is Monte Carlo.",
        between(0, 1),
    )
    normalize_advantage: bool = option(
        False, "Normalize advantages per rollout to mean 0 and standard deviation 1."
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
