"""PPO of RLlib with env runners on a local Ray cluster."""

from __future__ import annotations

import logging

import ray
from ppo_settings import Part
from process_tree import Clock
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from scale_settings import measure


def train(part: Part, steps: int, runners: int, clock: Clock) -> None:
    """A training as everybody is set; each runner has an equal share of the environments."""
    ray.init(num_cpus=runners + 1, include_dashboard=False, logging_level=logging.ERROR)
    rows = part.num_envs * part.n_steps
    algorithm = (
        PPOConfig()
        .environment(part.env)
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=part.num_envs // runners,
            rollout_fragment_length=part.n_steps,
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(part.net_arch),
                fcnet_activation="tanh",
                vf_share_layers=False,
            )
        )
        .training(
            lr=part.learning_rate,
            gamma=part.gamma,
            lambda_=part.gae_lambda,
            train_batch_size_per_learner=rows,
            minibatch_size=part.batch_size,
            num_epochs=part.n_epochs,
            clip_param=part.clip_range,
            vf_clip_param=1e9,
            vf_loss_coeff=part.vf_coef,
            entropy_coeff=part.ent_coef,
            use_kl_loss=False,
            grad_clip=part.max_grad_norm,
        )
        .debugging(seed=1, log_level="ERROR")
        .build_algo()
    )
    clock.start()
    sampled = 0
    for _ in range(-(-steps // rows)):
        sampled = algorithm.train()["num_env_steps_sampled_lifetime"]
    clock.stop()
    assert sampled >= steps, sampled


if __name__ == "__main__":
    measure("ray", train)
