"""SAC and TD3 of Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import sac_settings as same
from stable_baselines3 import SAC, TD3


def run(steps: int, seed: int) -> None:
    """A whole training."""
    more: dict[str, Any] = {"policy_delay": same.POLICY_DELAY} if same.ALGORITHM == "td3" else {}
    model: Any = (TD3 if same.ALGORITHM == "td3" else SAC)(
        "MlpPolicy",
        same.ENV,
        seed=seed,
        learning_rate=same.LEARNING_RATE,
        buffer_size=same.BUFFER_SIZE,
        learning_starts=same.LEARNING_STARTS,
        batch_size=same.BATCH_SIZE,
        tau=same.TAU,
        gamma=same.GAMMA,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": same.NET_ARCH},
        device="cpu",
        **more,
    )
    model.learn(steps)


if __name__ == "__main__":
    same.measure("stable-baselines3", run)
