"""`rlplug show` names what looks wrong with a run, and says nothing of a sound one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rlplug as package

if TYPE_CHECKING:
    from tests.conftest import Outcome

Cli = Callable[..., "Outcome"]

EVALUATED = {"tracking.enabled": False, "evaluation.episodes": 2}
PPO = {"n_steps": 32, "n_epochs": 4, "evaluation.every": 256}
DQN = {"learning_starts": 100, "evaluation.every": 100}
Case = tuple[str, str, int, dict[str, Any]]
SOUND: dict[str, Case] = {
    "ppo": ("ppo", "CartPole-v1", 6_000, {**PPO, "n_steps": 128, "learning_rate": 1e-3}),
    "dqn": ("dqn", "CartPole-v1", 2_000, DQN),
    "td3": ("td3", "Pendulum-v1", 600, {**DQN, "batch_size": 16}),
}
FAULTY: dict[str, Case] = {
    "no reward other than 0": ("dqn", "FrozenLake-v1", 600, {**DQN, "env.map_name": "8x8"}),
    "every episode of all": ("dqn", "MountainCar-v0", 1_000, DQN),
    "train/entropy fell": (
        *("ppo", "CartPole-v1", 4_000),
        {**PPO, "learning_rate": 1.0, "learner.max_grad_norm": 100.0},
    ),
    "no action is random": (
        *("dqn", "CartPole-v1", 1_000),
        {**DQN, "exploration_final_eps": 0.0, "exploration_fraction": 0.01},
    ),
    "train/learning_rate was 0": (
        *("ppo", "CartPole-v1", 3_000),
        {**PPO, "learning_rate": [[0, 1e-3], [1_000, 0.0]]},
    ),
    "train/explained_variance was never": (
        *("ppo", "CartPole-v1", 6_000),
        {**PPO, "n_steps": 64, "vf_coef": 0.0},
    ),
    "train/approx_kl was": (
        *("ppo", "CartPole-v1", 3_000),
        {**PPO, "target_kl": 1e-4, "learning_rate": 1e-2},
    ),
    "train/clip_fraction was": (
        *("ppo", "CartPole-v1", 3_000),
        {**PPO, "clip_range": 1e-4, "learning_rate": 1e-2},
    ),
    "train/q_mean reached": (
        *("dqn", "CartPole-v1", 2_000),
        {**DQN, "gamma": 1.0, "learning_rate": 0.1, "target_update_interval": 1},
    ),
    "of the actions in evaluations": (
        *("td3", "Pendulum-v1", 800),
        {**DQN, "learning_rate": 0.3, "batch_size": 16},
    ),
    "and was clipped to": (
        *("ppo", "CartPole-v1", 3_000),
        {**PPO, "learner.max_grad_norm": 1e-6},
    ),
}


def warnings_of(case: Case, rlplug: Cli) -> list[str]:
    algorithm, env, steps, options = case
    package.run(algorithm, env, steps=steps, seed=1, options={**EVALUATED, **options})
    shown: list[str] = json.loads(rlplug("show", "last", "--json").out)["warnings"]
    text = " ".join(rlplug("show", "last").out.split())
    assert all(warning in text for warning in shown)
    return shown


@pytest.mark.parametrize("name", FAULTY)
def test_what_looks_wrong_is_said(name: str, home: Path, rlplug: Cli) -> None:
    assert any(name in warning for warning in warnings_of(FAULTY[name], rlplug))


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said_of_a_sound_run(name: str, home: Path, rlplug: Cli) -> None:
    assert warnings_of(SOUND[name], rlplug) == []
