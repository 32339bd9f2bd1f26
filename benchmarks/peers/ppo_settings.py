"""What every PPO of the comparison is set to, and how each is timed."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

__all__ = ["PARTS", "Part", "measure"]


@dataclass(frozen=True)
class Part:
    """One environment with the settings that all peers share."""

    env: str
    num_envs: int
    n_steps: int
    batch_size: int
    n_epochs: int
    net_arch: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    flatten: bool = False
    """Observations of several spaces, for peers that take only one to be flattened by Gymnasium."""
    atari: bool = False
    """Images of Atari games: four grey frames of 84 × 84, rewards clipped to ±1."""


PARTS = {
    "cartpole": Part("CartPole-v1", 8, 128, 256, 4),
    "relu": Part("CartPole-v1", 8, 128, 256, 4, activation="relu"),
    "256-256": Part("CartPole-v1", 8, 128, 256, 4, (256, 256)),
    "taxi": Part("Taxi-v4", 8, 128, 256, 4),
    "blackjack": Part("Blackjack-v1", 8, 128, 256, 4, flatten=True),
    # What RL Baselines3 Zoo has for Atari; the heads read the encoder's 512 features.
    "pong": Part(
        *("ALE/Pong-v5", 8, 128, 256, 4, ()),
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        atari=True,
    ),
    # What Stable-Baselines3 does when it is told nothing.
    "pendulum": Part("Pendulum-v1", 1, 2048, 64, 10),
    "halfcheetah": Part("HalfCheetah-v5", 1, 2048, 64, 10),
}

Timed = tuple[float, float]


def measure(distribution: str, train: Callable[[Part, int, int], Callable[[], object]]) -> None:
    """Train on the part that the command line names; print what it took as a line of JSON.

    `train` is given the part, the steps and a seed, and gives back the training itself: what comes
    before it is not timed.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    said = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    work = train(PARTS[said.part], said.steps, said.seed)
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        json.dumps(
            {"version": version(distribution), "steps": said.steps, "wall": wall, "cpu": cpu}
        )
    )
