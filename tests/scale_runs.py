"""A run of PPO that is spread over processes, and how far its weights are from another's."""

from __future__ import annotations

from typing import Any

import torch

import rlplug

PPO = {
    "num_envs": 4,
    "n_steps": 32,
    "batch_size": 32,
    "n_epochs": 2,
    "env.normalize_observation": True,
    "evaluation.episodes": 0,
    "checkpoint.updates": 2,
    "tracking.enabled": False,
}


def ppo(*, steps: int, **options: Any) -> rlplug.RunResult:
    return rlplug.run("ppo", "CartPole-v1", steps=steps, options={**PPO, **options})


def largest_difference(one: torch.nn.Module, other: torch.nn.Module) -> float:
    there = other.state_dict()
    return max(
        float((value.double() - there[name].double()).abs().max())
        for name, value in one.state_dict().items()
        if value.numel()
    )
