"""PPO of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
from gymnasium.wrappers import FlattenObservation
from ppo_settings import Part, measure
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack
from torch import nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


def train(part: Part, steps: int, seed: int) -> Callable[[], object]:
    """A training as everybody is set."""
    model = PPO(
        "CnnPolicy" if part.atari else "MlpPolicy",
        _environments(part, seed),
        seed=seed,
        learning_rate=part.learning_rate,
        n_steps=part.n_steps,
        batch_size=part.batch_size,
        n_epochs=part.n_epochs,
        gamma=part.gamma,
        gae_lambda=part.gae_lambda,
        clip_range=part.clip_range,
        ent_coef=part.ent_coef,
        vf_coef=part.vf_coef,
        max_grad_norm=part.max_grad_norm,
        policy_kwargs={
            "net_arch": list(part.net_arch),
            "activation_fn": ACTIVATIONS[part.activation],
        },
        device="cpu",
    )
    return lambda: model.learn(steps)


def _environments(part: Part, seed: int) -> VecEnv:
    if part.atari:
        import ale_py

        gymnasium.register_envs(ale_py)
        # SB3's wrappers skip frames themselves, and leave out sticky actions unless told otherwise.
        plain = {"frameskip": 1, "repeat_action_probability": 0.0}
        return VecFrameStack(make_atari_env(part.env, part.num_envs, seed, env_kwargs=plain), 4)
    wrapper = FlattenObservation if part.flatten else None
    return make_vec_env(part.env, part.num_envs, seed=seed, wrapper_class=wrapper)


if __name__ == "__main__":
    measure("stable-baselines3", train)
