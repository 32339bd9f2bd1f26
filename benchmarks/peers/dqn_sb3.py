"""DQN of Stable-Baselines3."""

from __future__ import annotations

import dqn_settings as same
from stable_baselines3 import DQN


def made(seed: int, batch_size: int) -> DQN:
    """As everybody is set; Huber's loss and clipping are its own."""
    first, last, fraction = same.EXPLORATION
    return DQN(
        "MlpPolicy",
        same.ENV,
        seed=seed,
        learning_rate=same.LEARNING_RATE,
        buffer_size=same.BUFFER_SIZE,
        learning_starts=same.LEARNING_STARTS,
        batch_size=batch_size,
        gamma=same.GAMMA,
        train_freq=same.TRAIN_FREQ,
        gradient_steps=1,
        target_update_interval=same.TARGET_INTERVAL,
        exploration_fraction=fraction,
        exploration_initial_eps=first,
        exploration_final_eps=last,
        max_grad_norm=same.MAX_GRAD_NORM,
        policy_kwargs={"net_arch": same.NET_ARCH},
        device="cpu",
    )


def run(steps: int, seed: int) -> same.Timed:
    """A whole training."""
    model = made(seed, same.BATCH_SIZE)
    return same.timed(lambda: model.learn(steps))


def learn(updates: int, batch_size: int, seed: int) -> same.Timed:
    """Updates alone, drawn from a buffer of steps."""
    model = made(seed, batch_size)
    model.learn(2_000)
    return same.timed(lambda: model.train(updates, batch_size))


if __name__ == "__main__":
    same.measure("stable-baselines3", run=run, learn=learn)
