"""PPO of RLlib with agents that share one module, in one process."""

from __future__ import annotations

import json
import logging
import resource
import sys
from importlib.metadata import version

import ray
from agents_settings import ENVIRONMENTS, NUM_ENVS, SETTINGS
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune import register_env


def main(env: str, wanted: str) -> None:
    """Train, and print environment steps and CPU seconds as a line of JSON."""
    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level=logging.ERROR)
    register_env(env, lambda _: ParallelPettingZooEnv(ENVIRONMENTS[env]()))
    network = DefaultModelConfig(
        fcnet_hiddens=SETTINGS["net_arch"], fcnet_activation="tanh", vf_share_layers=False
    )
    algorithm = (
        PPOConfig()
        .environment(env)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=NUM_ENVS,
            rollout_fragment_length=SETTINGS["n_steps"],
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0)
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent, *_, **__: "shared")
        .rl_module(
            rl_module_spec=MultiRLModuleSpec(
                rl_module_specs={"shared": RLModuleSpec(model_config=network)}
            )
        )
        .training(
            lr=SETTINGS["learning_rate"],
            gamma=SETTINGS["gamma"],
            lambda_=SETTINGS["gae_lambda"],
            train_batch_size_per_learner=NUM_ENVS * SETTINGS["n_steps"],
            minibatch_size=SETTINGS["batch_size"],
            num_epochs=SETTINGS["n_epochs"],
            clip_param=SETTINGS["clip_range"],
            vf_clip_param=1e9,
            vf_loss_coeff=SETTINGS["vf_coef"],
            entropy_coeff=SETTINGS["ent_coef"],
            use_kl_loss=False,
            grad_clip=SETTINGS["max_grad_norm"],
        )
        .debugging(log_level="ERROR")
        .build_algo()
    )
    # The first iteration has what is done once.
    algorithm.train()
    began, taken = _cpu_seconds(), 0
    while taken < int(wanted):
        taken += int(algorithm.train()["env_runners"]["num_env_steps_sampled"])
    seconds = _cpu_seconds() - began
    print(json.dumps({"steps": taken, "seconds": seconds, "version": version("ray")}), flush=True)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:])
