"""Runs that are spread over processes, and how far they are from one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import gymnasium
import numpy
import psutil
import pytest
import threadpoolctl
import torch

import rlplug
from rlplug.learner.device import limit_threads, settings_kept

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


class Threads(gymnasium.Env[Any, Any]):
    """Rewards a step by threads: 10 for each of torch's in its process, 1 for each of BLAS's."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 10.0 * torch.get_num_threads() + blas_threads()
        return numpy.zeros(1, numpy.float32), reward, False, False, {}


class FailsElsewhere(Threads):
    """Can be stepped by the first learner alone."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if "rlplug.cli.child" in command_of(psutil.Process()):
            raise ValueError("not here")
        return super().step(action)


def command_of(process: psutil.Process) -> str:
    """How a process was started; empty for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def blas_threads() -> int:
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
    (count,) = {one["num_threads"] for one in found}
    return int(count)


@contextmanager
def threads_per_process(count: int) -> Iterator[None]:
    """Processes started here compute with so many threads, as does this one."""
    with pytest.MonkeyPatch.context() as patch, settings_kept():
        patch.setenv("OMP_NUM_THREADS", str(count))
        limit_threads(count)
        yield


def ppo(env: str = "CartPole-v1", /, *, steps: int, **options: Any) -> rlplug.RunResult:
    return rlplug.run("ppo", env, steps=steps, options={**PPO, **options})


def largest_difference(one: torch.nn.Module, other: torch.nn.Module) -> float:
    there = other.state_dict()
    return max(
        float((value.double() - there[name].double()).abs().max())
        for name, value in one.state_dict().items()
        if value.numel()
    )


def linucb_in_one_process_and(**spread: Any) -> rlplug.RunResult:
    """The run with these options, after comparing it with the same one in one process."""
    options: dict[str, Any] = {
        "num_envs": 4,
        "sampling.vectorization": "sync",
        "env.problem_seed": 7,
        "tracking.enabled": False,
    }
    # Arms of which something is known are not tied: no draw decides between them.
    before = rlplug.run("linucb", "LinearBandit-v0", steps=200, options=options)
    options["run.init_from"] = before.run_id
    one, other = (
        rlplug.run("linucb", "LinearBandit-v0", steps=200, seed=1, options={**options, **more})
        for more in ({}, spread)
    )
    estimates: list[Any] = [cast(Any, run.module).estimates() for run in (one, other)]
    for here, there in zip(*estimates, strict=True):
        assert here == pytest.approx(there, abs=1e-9)
    for metric in ("rollout/regret_total", "rollout/reward_mean"):
        assert other.metrics[metric] == pytest.approx(one.metrics[metric], abs=1e-9)
    return other


def resumed_equals(local: rlplug.RunResult, **spread: Any) -> rlplug.RunResult:
    """Compares a local run of 6 updates with a spread one that is resumed after 3 of them."""
    part = ppo(steps=1024, **spread, **{"run.max_updates": 3})
    whole = rlplug.resume(part.run_id, options={"run.max_updates": 6}, allow_drift=True)
    assert (local.step, part.step, whole.step) == (768, 384, 768)
    assert largest_difference(local.module, part.module) > 1e-3
    assert largest_difference(local.module, whole.module) == 0.0
    for name, value in local.metrics.items():
        if not name.startswith("time/"):
            assert whole.metrics[name] == value, name
    return whole


def as_torchrun_starts(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    """The environment of the first of several processes."""
    for name, value in {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "0",
        "WORLD_SIZE": str(processes),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
