"""What is learned, on real environments and where only a memory helps."""

from __future__ import annotations

import pytest
from rlplug_ppo import A2C, PPO

from rlplug import run
from rlplug.testing.probes import t_maze

pytestmark = pytest.mark.usefixtures("home")


def test_the_preset_for_cartpole_learns_it() -> None:
    options = {"run.preset": "cartpole", "tracking.enabled": False, "evaluation.every": 0}
    result = run(PPO, steps=20_000, seed=1, options=options)
    # Drawing actions at random earns about 20.
    assert result.metrics["eval/return_mean"] >= 150.0


def test_a2c_learns_cartpole_as_well() -> None:
    result = run(A2C, steps=20_000, seed=1, options={"tracking.enabled": False})
    assert result.metrics["eval/return_mean"] >= 150.0


def earned_in_the_maze(memory: str) -> float:
    """The mean return of the T-maze, in which only the sign at the start says where to turn."""
    options = {
        "tracking.enabled": False,
        "checkpoint.save_environments": False,
        "evaluation.episodes": 320,
        "sampling.num_envs": 8,
        "n_steps": 16,
        "batch_size": 64,
        "n_epochs": 10,
        "learning_rate": 0.003,
        "memory": memory,
        "memory_size": 16,
    }
    return run(PPO, t_maze, steps=8_000, seed=1, options=options).metrics["eval/return_mean"]


@pytest.mark.long
def test_a_memory_solves_what_nobody_without_one_can() -> None:
    assert earned_in_the_maze("lstm") > 0.9
    assert abs(earned_in_the_maze("none")) < 0.3
