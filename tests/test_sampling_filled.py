"""Environments that write where steps are kept: the same experience as when they are copied."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium.vector import AutoresetMode

from rlplug import Acted, ActInput, Module
from rlplug.config.sections import EnvSection
from rlplug.envs import Environments
from rlplug.envs.normalization import Normalization
from rlplug.envs.sync import SyncVector
from rlplug.sampling import VectorSampler


class Copied(SyncVector):
    """What it gives is copied, as from any vector."""


class Walk(gymnasium.Env[Any, Any]):
    """Random numbers; ends or is cut off at random; every second step has a mask, if it has any."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, masks: bool = False) -> None:
        self.masks = masks

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen(), self._info()

    def step(self, action: Any) -> Any:
        ends, cut = self.np_random.random(2) < (0.2, 0.1)
        return self._seen(), float(action) + self.np_random.random(), ends, cut, self._info()

    def _seen(self) -> Any:
        return self.np_random.normal(size=2).astype(numpy.float32)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": numpy.array([True, False, True])} if self.masks else {}


class Remembers(Module):
    """Chooses at random, keeps what it drew, and adds up what it saw."""

    def __init__(self, memory: bool) -> None:
        super().__init__()
        self.memory = memory

    def forward_exploration(self, act: ActInput) -> Acted:
        n = len(act.observations)
        drawn = act.random.random(n)
        state = None
        if act.state is not None:
            state = {"sum": act.state["sum"] + torch.from_numpy(act.observations[:, 0].copy())}
        extras = {"drawn": drawn} if self.memory else {}
        return Acted((drawn * 3).astype(numpy.int64), state, extras)

    def initial_state(self, n: int) -> Any:
        return {"sum": torch.zeros(n)} if self.memory else None


def collected(kind: type[SyncVector], num_envs: int, what: str) -> list[Any]:
    """All that some collections tell, and the metrics of episodes."""
    vector = kind([lambda: Walk(what == "masks")] * num_envs)
    normalization = None
    if what == "normalized":
        section = EnvSection(normalize_observation=True, normalize_reward=True)
        normalization = Normalization(section, vector.single_observation_space, num_envs)
    environments = Environments(vector, "Walk", AutoresetMode.SAME_STEP, normalization)
    sampler = VectorSampler(
        environments,
        Remembers(what == "memory"),
        seed=3,
        steps=5,
        by_environment=what in ("memory", "by environment"),
        state_interval=2,
    )
    sampler.start()
    told: list[Any] = []
    for step in range(0, 8 * 5 * num_envs, 5 * num_envs):
        experience = sampler.collect(step)
        told.append({name: column.tolist() for name, column in experience.columns.items()})
        told.append({name: column.tolist() for name, column in experience.following.items()})
        if experience.finals is not None:
            seen = experience.finals.columns
            told.append(experience.finals.indices.tolist())
            told.append({name: column.tolist() for name, column in seen.items()})
        told.append([state["sum"].tolist() for state in experience.states])
        sampler.absorb()
    return [*told, sampler.episode_stats.take()]


@pytest.mark.parametrize("num_envs", [1, 3], ids=str)
@pytest.mark.parametrize("what", ["plain", "by environment", "memory", "masks", "normalized"])
def test_what_is_written_in_place_is_what_is_copied(num_envs: int, what: str) -> None:
    assert collected(SyncVector, num_envs, what) == collected(Copied, num_envs, what)


def test_an_observation_of_another_shape_is_refused_by_its_environment() -> None:
    class Grows(Walk):
        def _seen(self) -> Any:
            self.steps = getattr(self, "steps", 0) + 1
            return numpy.zeros(2 if self.steps < 4 else 1, numpy.float32)

    vector = SyncVector([Walk, Grows])
    environments = Environments(vector, "Grows", AutoresetMode.SAME_STEP)
    sampler = VectorSampler(environments, Remembers(False), seed=0, steps=5)
    sampler.start()
    with pytest.raises(Exception, match=r"\(2 of 2\).*shape \(1,\), its space has \(2,\)"):
        sampler.collect(0)
