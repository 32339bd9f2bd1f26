"""SAC and TD3 of rlplug, as a person would run them: `rlplug.run`, with nothing recorded."""

from __future__ import annotations

from typing import Any

import sac_settings as same

import rlplug


def run(steps: int, seed: int) -> None:
    """A whole training."""
    options: dict[str, Any] = {
        "net_arch": same.NET_ARCH,
        "learning_rate": same.LEARNING_RATE,
        "buffer_size": same.BUFFER_SIZE,
        "learning_starts": same.LEARNING_STARTS,
        "batch_size": same.BATCH_SIZE,
        "tau": same.TAU,
        "gamma": same.GAMMA,
        "train_freq": 1,
        "gradient_steps": 1,
        "tracking.enabled": False,
        "evaluation.episodes": 0,
        "checkpoint.minutes": 0,
    }
    if same.ALGORITHM == "td3":
        options["policy_delay"] = same.POLICY_DELAY
        # Stable-Baselines3 explores without noise unless it is given some.
        options["action_noise"] = 0.0
    rlplug.run(same.ALGORITHM, same.ENV, steps=steps, seed=seed, options=options)


if __name__ == "__main__":
    same.measure("rlplug-sac", run)
