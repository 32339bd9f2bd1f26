"""What is collected is what happened, whatever steps the environments: one oracle for all sources.

An observation is the number of its environment, the episode and the step: what must stand beside
it follows from it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import numpy
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplug import Acted, ActInput, Module
from rlplug.config.sections import EnvSection
from rlplug.envs import Environments
from rlplug.envs.normalization import Normalization
from rlplug.envs.sync import SyncVector
from rlplug.envs.workers import WorkerVector
from rlplug.feeds import Experience
from rlplug.sampling import Collector
from rlplug.seeding import derive
from tests.collecting import collector

SEED, NUM = 3, 3
INTERVAL = 2


class Coded(gymnasium.Env[Any, Any]):
    """Its episodes have two steps more than its number; every second one is cut off."""

    observation_space = gymnasium.spaces.Box(-1, 1e6, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(4)
    numbers: ClassVar[dict[int, int]] = {
        derive(SEED, "environment", index) % 2**31: index for index in range(NUM)
    }
    masked = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.number, self.episode = self.numbers.get(seed, 0), -1
        self.episode, self.taken = self.episode + 1, 0
        return self.seen()

    def seen(self) -> Any:
        code = numpy.array([self.number, self.episode, self.taken], numpy.float32)
        return code, {"action_mask": mask_at(self.taken)} if self.masked else {}

    def step(self, action: Any) -> Any:
        reward = reward_at(self.number, self.episode, self.taken, action)
        self.taken += 1
        ended, cut = self.taken == self.number + 2, bool(self.episode % 2)
        seen, info = self.seen()
        return seen, reward, ended and not cut, ended and cut, info


class Masked(Coded):
    """Allows two of the actions, by turns."""

    masked = True


class Copied(SyncVector):
    """Steps as SyncVector does, but is not known not to return anything else."""


def mask_at(step: int) -> Any:
    return numpy.array([1, 1, 0, 0] if step % 2 else [0, 0, 1, 1], numpy.int8)


def reward_at(env: int, episode: int, step: int, action: int) -> float:
    return 100 * env + 10 * episode + step + action / 8


class Plays(Module):
    """Acts by step and mask; its memory is the number of steps since the start of the episode."""

    def __init__(self, *, memory: bool) -> None:
        super().__init__()
        self.memory = memory

    def initial_state(self, n: int) -> Any:
        return {"age": torch.zeros(n)} if self.memory else None

    def forward_exploration(self, act: ActInput) -> Acted:
        seen, mask = numpy.array(act.observations), act.action_mask
        actions = numpy.zeros(len(seen), int) if mask is None else numpy.asarray(mask).argmax(1)
        state = {"age": act.state["age"] + 1} if self.memory else None
        return Acted(actions, state, {"given": seen})


class Oracle:
    """Checks that the rows of each environment follow each other, none left out, none twice."""

    def __init__(self, what: str, normalization: Any) -> None:
        self.what, self.normalization = what, normalization
        self.next = [[env, 0, 0] for env in range(NUM)]
        self.rows = numpy.zeros(NUM, int)
        self.running, self.returns = numpy.zeros(NUM), list[float]()

    def check(self, experience: Experience) -> None:
        """Check a collection, which goes on where the last one ended."""
        grids = {name: experience.grid(one) for name, one in experience.columns.items()}
        stepped = numpy.ones((experience.steps, NUM), bool)
        if experience.stepped is not None:
            stepped = experience.grid(experience.stepped)
        for time, env in numpy.argwhere(stepped).tolist():
            row = {name: grid[time, env] for name, grid in grids.items()}
            self.follow(experience, row, time, env)
        self.rows += stepped.sum(0)
        if self.what == "memory":
            assert len(experience.states) == -(-experience.steps // INTERVAL)
            for index, state in enumerate(experience.states):
                for env in numpy.flatnonzero(stepped[index * INTERVAL]).tolist():
                    seen = grids["observations"][index * INTERVAL, env]
                    assert float(state["age"][env]) == seen[2]

    def follow(self, experience: Experience, row: Any, time: int, env: int) -> None:
        """Check one step."""
        assert row["observations"].tolist() == self.next[env]
        number, episode, step = self.next[env]
        mask = mask_at(step)
        action = int(mask.argmax()) if self.what == "masks" else 0
        if self.what == "masks":
            assert row["action_mask"].tolist() == mask.tolist()
        given = row["observations"]
        if self.normalization is not None:
            given = self.normalization.observations(given)
        assert row["given"].tolist() == given.tolist()
        assert (row["actions"], row["rewards"]) == (
            action,
            reward_at(number, episode, step, action),
        )
        ended = step + 1 == env + 2
        ends = ended and not episode % 2, ended and bool(episode % 2)
        assert (row["terminated"], row["truncated"]) == ends
        after = experience.next_grid("observations")[time, env]
        assert after.tolist() == [env, episode, step + 1]
        if self.what == "masks" and not ended:
            after = experience.next_grid("action_mask")[time, env]
            assert after.tolist() == mask_at(step + 1).tolist()
        self.running[env] += row["rewards"]
        self.next[env] = [env, episode + 1, 0] if ended else [env, episode, step + 1]
        if ended:
            self.returns.append(self.running[env])
            self.running[env] = 0.0


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens collectors of a kind of source, and ends what they started after the test."""
    vectors: list[Any] = []

    def opened(kind: str, what: str, **options: Any) -> tuple[Collector, Any]:
        make: Any = Masked if what == "masks" else Coded
        mode = AutoresetMode.SAME_STEP
        vector: Any
        if kind.startswith("workers"):
            vector = WorkerVector(make, NUM, 2)
            options |= {"force_sync": kind == "workers in step"}
        elif kind in ("ours", "copied"):
            vector = (SyncVector if kind == "ours" else Copied)([make] * NUM)
        else:
            mode = AutoresetMode[kind.upper()]
            vector = SyncVectorEnv([make] * NUM, autoreset_mode=mode)
        vectors.append(vector)
        normalization = None
        if what == "normalized":
            section = EnvSection(normalize_observation=True, normalize_reward=True)
            normalization = Normalization(section, Coded.observation_space, NUM)
        environments = Environments(vector, "Coded", mode, normalization)
        module = Plays(memory=what == "memory")
        return collector(environments, module, seed=SEED, **options), normalization

    yield opened
    for vector in vectors:
        vector.close()


@pytest.mark.parametrize("what", ["plain", "memory", "masks", "normalized"])
@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        *((kind, 1) for kind in ("ours", "copied", "same_step", "next_step", "disabled")),
        *((kind, 5) for kind in ("ours", "copied", "same_step", "next_step", "disabled")),
        ("workers in step", 1),
        ("workers in step", 5),
    ],
)
def test_all_is_collected_that_happened_also_after_a_state(
    kind: str, steps: int, what: str, opened: Any
) -> None:
    options = {"steps": steps, "by_environment": what == "memory", "state_interval": INTERVAL}
    sampler, normalization = opened(kind, what, **options)
    sampler.start()
    oracle, taken = Oracle(what, normalization), 0
    for _ in range(12):
        oracle.check(sampler.collect(taken))
        taken += NUM * steps
        sampler.absorb()
    # Steps that only reset are none.
    assert kind == "next_step" or oracle.rows.tolist() == [12 * steps] * NUM
    metrics = sampler.take_metrics()
    assert metrics["rollout/return_mean"] == pytest.approx(numpy.mean(oracle.returns))
    assert metrics["rollout/length_mean"] > 2
    other, others = opened(kind, what, **options)
    assert other.set_state(sampler.get_state(), seed=0) == ""
    if normalization is not None:
        others.set_state(normalization.get_state())
        oracle.normalization = others
    for _ in range(4):
        oracle.check(other.collect(taken))
        taken += NUM * steps


@pytest.mark.parametrize("what", ["plain", "memory", "masks"])
@pytest.mark.parametrize(("count", "rollout"), [(1, False), (10, False), (10, True)])
def test_environments_that_are_ready_bring_about_so_many_rows(
    what: str, count: int, rollout: bool, opened: Any
) -> None:
    options = {"count": count, "by_environment": rollout, "state_interval": INTERVAL}
    sampler, _ = opened("workers", what, **options)
    sampler.start()
    oracle, spreads = Oracle("plain" if what == "memory" else what, None), set()
    for _ in range(30):
        before = oracle.rows.sum()
        experience = sampler.collect(int(before))
        oracle.check(experience)
        assert experience.counts is not None
        assert count <= experience.counts.sum() == oracle.rows.sum() - before < count + NUM
        spreads.add(int(numpy.ptp(experience.counts)))
    # With memory, all steps are waited for before the next collection.
    assert max(spreads) > 0 or (what, count) == ("memory", 1)
    other, _ = opened("workers", what, **options)
    assert other.set_state(sampler.get_state(), seed=0) == ""
    for _ in range(5):
        oracle.check(other.collect(int(oracle.rows.sum())))
