"""What only a CUDA device can show; without one, all of it is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import rlplug
from tests.test_resume_exact import resumed_equals

pytestmark = [
    pytest.mark.usefixtures("home"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

CART_POLE = "examples.tensor_tasks:TensorCartPole"
PPO = {"num_envs": 4, "n_steps": 32, "batch_size": 64}
REPLAY = {"num_envs": 4, "learning_starts": 200}


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_a_policy_with_memory_acts_in_environments_of_arrays(memory: str) -> None:
    options = {**PPO, "memory": memory, "compute.device": "cuda", "tracking.enabled": False}
    done = rlplug.run("ppo", "CartPole-v1", steps=1024, seed=0, options=options)
    assert done.status == "FINISHED"
    # On a GPU the weights of such a layer are parts of one storage.
    assert (done.folder / "module.safetensors").is_file()
    policy = rlplug.load(done.folder)
    policy.module.to("cuda")
    seen = numpy.zeros((2, 4), numpy.float32)
    first = policy.predict(seen, deterministic=True)
    policy.predict(seen, deterministic=True)
    again = policy.predict(seen, deterministic=True, episode_start=[True, True])
    assert first.tolist() == again.tolist()


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        ("ppo", "CartPole-v1", PPO),
        ("ppo", "CartPole-v1", {**PPO, "memory": "lstm"}),
        ("ppo", CART_POLE, PPO),
        ("dqn", "CartPole-v1", REPLAY),
        ("dqn", CART_POLE, REPLAY),
        ("sac", "Pendulum-v1", REPLAY),
    ],
)
def test_a_resumed_run_equals_one_that_was_not_cut_off(
    home: Path, algorithm: str, env: str, options: dict[str, Any]
) -> None:
    resumed_equals(
        home,
        algorithm,
        env,
        steps=2048,
        every=512,
        at=1500,
        options={**options, "compute.device": "cuda"},
    )
