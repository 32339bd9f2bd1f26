"""PPO of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Callable

from ppo_settings import Part, measure
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def train(part: Part, steps: int, seed: int) -> Callable[[], object]:
    """A training as everybody is set."""
    model = PPO(
        "MlpPolicy",
        make_vec_env(part.env, part.num_envs, seed=seed),
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
        policy_kwargs={"net_arch": list(part.net_arch)},
        device="cpu",
    )
    return lambda: model.learn(steps)


if __name__ == "__main__":
    measure("stable-baselines3", train)
