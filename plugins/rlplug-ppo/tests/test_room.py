"""How much room a run takes: that of its rollout, however long it goes on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FRAME = 4 * 4096
"""Bytes of one observation, beside which all else in a row is small."""

RUN = """
import ctypes, gc, json, sys
from pathlib import Path

import gymnasium, numpy
from gymnasium import spaces
from rlplug import run
from rlplug_ppo import PPO

class Wide(gymnasium.Env):
    metadata = {"render_modes": []}

    def __init__(self):
        self.observation_space = spaces.Box(-1.0, 1.0, (4096,), numpy.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.ones(4096, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        return numpy.ones(4096, numpy.float32), 1.0, self.steps % 7 == 0, False, {}

def most():
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])

class Weighed(PPO):
    def additional_update(self, module, config, batch, metrics, learner):
        seen.append(most())
        return super().additional_update(module, config, batch, metrics, learner)

for n_steps, num_envs, updates, memory in json.loads(sys.argv[1]):
    options = {
        "tracking.enabled": False,
        "evaluation.episodes": 0,
        "sampling.num_envs": num_envs,
        "n_steps": n_steps,
        "batch_size": 32,
        "n_epochs": 2,
        "net_arch": [4],
        "memory": memory,
        "memory_size": 4,
    }
    # What earlier runs freed goes back to Linux, which forgets the most there was.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    seen = [most()]
    run(Weighed, Wide, steps=n_steps * num_envs * updates, seed=0, options=options)
    print(json.dumps(seen))
"""


pytestmark = pytest.mark.usefixtures("home")


def room(*runs: tuple[int, int, int, str]) -> list[list[int]]:
    """Bytes that each run takes of a process, at most, up to each of its updates.

    Runs are given as `n_steps`, environments, updates and memory; the first one is not counted.
    """
    given = [sys.executable, "-c", RUN, json.dumps([(16, 8, 2, "lstm"), *runs])]
    said = subprocess.run(given, check=True, capture_output=True, text=True).stdout
    lists = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
    return [[most - before for most in later] for before, *later in lists[1:]]


@pytest.mark.long
def test_room_grows_with_steps_and_environments_alone() -> None:
    sizes = [(128, 8, "none"), (16, 64, "none"), (128, 8, "lstm"), (256, 8, "none")]
    runs = room(*((n_steps, num_envs, 3, memory) for n_steps, num_envs, memory in sizes))
    for (n_steps, num_envs, _), (*_, taken) in zip(sizes, runs, strict=True):
        rollout = n_steps * num_envs * FRAME
        # The rollout, with the last observations of its fragments, and shuffled for two passes.
        assert rollout < taken < 8 * rollout
    steps, environments, _, twice = (taken for *_, taken in runs)
    assert environments == pytest.approx(steps, rel=0.3)
    assert twice == pytest.approx(2 * steps, rel=0.3)
