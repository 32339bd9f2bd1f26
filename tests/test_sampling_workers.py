"""Environments in worker processes: the same numbers in lock-step, and whole episodes otherwise."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium.vector import AutoresetMode

from rlplug import Acted, ActInput, Module
from rlplug.batch.nested import first_leaf
from rlplug.envs import Environments
from rlplug.envs.workers import WorkerVector
from rlplug.envs.workers.vector import SharedColumns
from rlplug.errors import EnvironmentFailedError, RequestError
from rlplug.sampling import Collector
from tests.collecting import collector
from tests.worker_games import Draws, Late, Numbered, Walk


class Remembers(Module):
    """Chooses at random, keeps what it drew, and adds up what it saw."""

    def __init__(self, memory: bool = False) -> None:
        super().__init__()
        self.memory = memory

    def forward_exploration(self, act: ActInput) -> Acted:
        n = len(first_leaf(act.observations))
        drawn = act.random.random(n)
        state = None
        if act.state is not None:
            state = {"sum": act.state["sum"] + torch.from_numpy(act.observations[:, 0].copy())}
        return Acted((drawn * 3).astype(numpy.int64), state, {"drawn": drawn})

    def initial_state(self, n: int) -> Any:
        return {"sum": torch.zeros(n)} if self.memory else None


Open = Callable[..., Collector]


@pytest.fixture
def open_sampler() -> Iterator[Open]:
    """Makes started samplers with worker processes, and ends these after the test."""
    vectors: list[WorkerVector] = []

    def opened(
        make: Callable[[], Any],
        num_envs: int = 4,
        workers: int = 2,
        module: Module | None = None,
        timeout: float = 0.0,
        **options: Any,
    ) -> Collector:
        vector = WorkerVector(make, num_envs, workers, name="Walk", timeout=timeout)
        vectors.append(vector)
        sampler = collector(
            Environments(vector, "Walk", AutoresetMode.SAME_STEP),
            module or Remembers(),
            seed=3,
            **options,
        )
        sampler.start()
        return sampler

    yield opened
    for vector in vectors:
        vector.close()


# -- those that are ready -----------------------------------------------------------------------


def one_late(sampler: Collector) -> int:
    """Start two environments anew, so that one of them is late; returns which."""
    for seed in range(99):
        sampler.start(seed)
        odd = sampler.source.own.seen[:, 0] % 2
        if odd.sum() == 1:
            return int(odd.argmax())
    raise AssertionError("no seed")


def test_a_slow_environment_does_not_hold_up_the_others(open_sampler: Open) -> None:
    sampler = open_sampler(lambda: Late(0.0), num_envs=2, count=20, keep_next=True)
    late = one_late(sampler)
    counts = sampler.collect(0).counts
    assert counts is not None
    assert (counts[late], counts[1 - late]) == (0, 20)


def test_a_slow_environment_does_not_hold_up_those_of_its_own_worker() -> None:
    vector = WorkerVector(lambda: Late(0.0), 2, 1)
    try:
        # Odd numbers are late.
        vector.reset(seed=0)
        for _ in range(3):
            vector.send(numpy.arange(2), numpy.zeros(2, int))
            began = time.monotonic()
            assert [env for env, _ in vector.workers.receive()] == [0]
            assert time.monotonic() - began < 0.4
            assert [env for env, _ in vector.workers.receive()] == [1]
    finally:
        vector.close()


def test_quick_environments_of_one_worker_are_answered_for_together() -> None:
    vector = WorkerVector(Walk, 8, 1)
    try:
        vector.reset(seed=0)
        most = 0
        # As soon as no step was interrupted by another process for a while.
        for _ in range(3000):
            vector.send(numpy.arange(8), numpy.zeros(8, int))
            waiting = 8
            while waiting:
                count = len(vector.workers.receive())
                waiting, most = waiting - count, max(most, count)
            if most == 8:
                break
        assert most == 8
    finally:
        vector.close()


def test_a_step_that_hangs_is_told_from_those_that_were_taken() -> None:
    class Hangs(Numbered):
        def step(self, action: Any) -> Any:
            time.sleep(2.0 if self.number == 2 else 0.0)
            return super().step(action)

    vector = WorkerVector(lambda: Hangs(0.0), 4, 1, name="Hangs", timeout=1.0)
    try:
        vector.reset(seed=0)
        vector.send(numpy.arange(4), numpy.zeros(4, int))
        with pytest.raises(EnvironmentFailedError, match=r"'Hangs' \(3 of 4\) failed in step: it"):
            vector.workers.receive_all()
    finally:
        vector.close()


def test_all_environments_workers_and_resets_draw_numbers_of_their_own() -> None:
    def drawn(seed: int) -> Any:
        vector = WorkerVector(Draws, 8, 4, seed=seed)
        try:
            seen = [vector.reset(seed=5)[0]]
            for _ in range(40):
                vector.step(numpy.zeros(8, int))
                seen.append(vector.columns.observations.copy())
        finally:
            vector.close()
        return numpy.stack(seen)

    first = drawn(1)
    # No two of 41 × 8 numbers are equal: neither in two environments, nor after two resets.
    assert all(len(numpy.unique(first[..., kind])) == first[..., kind].size for kind in (0, 1))
    assert drawn(1).tolist() == first.tolist()
    # The generators of environments are seeded by reset, those of processes by the run's seed.
    again = drawn(2)
    assert again[..., 0].tolist() == first[..., 0].tolist()
    assert len(numpy.intersect1d(again[..., 1], first[..., 1])) == 0


class Sizes(Remembers):
    """Keeps the sizes of the batches that it acts for."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward_exploration(self, act: ActInput) -> Acted:
        self.sizes.append(len(act.observations))
        return super().forward_exploration(act)


def test_batches_keep_their_limits(open_sampler: Open) -> None:
    module = Sizes()
    limits = {"min_batch_size": 2, "max_batch_size": 3}
    sampler = open_sampler(Numbered, num_envs=6, module=module, count=60, **limits)
    for _ in range(10):
        sampler.collect(0)
    assert set(module.sizes) == {2, 3}
    metrics = sampler.take_metrics()
    assert (metrics["sampling/batch_size_min"], metrics["sampling/batch_size_max"]) == (2, 3)
    assert metrics["sampling/batches_of_2"] == 1.0
    assert metrics["sampling/batch_size_mean"] == pytest.approx(numpy.mean(module.sizes))
    assert metrics["time/worker_seconds"] > 0


def test_more_environments_are_waited_for_at_most_so_long(open_sampler: Open) -> None:
    def sizes(seconds: float) -> list[int]:
        module = Sizes()
        sampler = open_sampler(
            lambda: Late(0.0), num_envs=2, module=module, max_wait_time=seconds, count=3
        )
        one_late(sampler)
        sampler.collect(0)
        return module.sizes

    # Both are ready at first; then one is waited for, or acted without.
    assert sizes(0.0)[:2] == [2, 1]
    assert sizes(60.0)[:2] == [2, 2]


def test_rows_tell_the_weights_that_acted_and_are_not_older_than_allowed(
    open_sampler: Open,
) -> None:
    def oldest(max_staleness: int) -> int:
        sampler = open_sampler(Numbered, max_staleness=max_staleness, count=1)
        ages = []
        for version in range(60):
            sampler.version = version
            experience = sampler.collect(0)
            versions = experience.columns["version"][experience.stepped]
            assert (versions <= version).all()
            ages.append(int((version - versions).max()))
        metrics = sampler.take_metrics()
        assert metrics["sampling/staleness_max"] == max(ages)
        return max(ages)

    assert oldest(1) <= 1
    assert oldest(0) > 1


# -- failures -----------------------------------------------------------------------------------


def one_fails(fails: str, fail_at: int, folder: Path) -> Callable[[], Any]:
    """Makes environments of which one fails, once: the second that is made in a worker."""

    def make() -> Any:
        # Workers make theirs at the same time: each number is taken once.
        number = 0
        while True:
            try:
                (folder / str(number)).open("x").close()
                break
            except FileExistsError:
                number += 1
        # The first is made in this process, to know the spaces.
        return Numbered(0.001, fails if number == 2 else "", fail_at)

    return make


def collect_often(sampler: Collector) -> None:
    for _ in range(100):
        sampler.collect(0)


@pytest.mark.parametrize("fails", ["raises", "is killed", "hangs"])
def test_a_worker_that_fails_ends_the_collection_and_names_environment_and_step(
    open_sampler: Open, fails: str, tmp_path: Path
) -> None:
    sampler = open_sampler(one_fails(fails, 9, tmp_path), workers=4, timeout=1.0, steps=5)
    with pytest.raises(EnvironmentFailedError) as failed:
        collect_often(sampler)
    what = {
        "raises": "ZeroDivisionError: no more",
        "is killed": "its worker process was killed by signal 9",
        "hangs": "it took more than 1 s (sampling.step_timeout)",
    }
    said = (
        rf"environment 'Walk' \(\d of 4\) failed in step after \d+ steps: {re.escape(what[fails])}"
    )
    assert re.match(said, failed.value.message)
    where = "\n".join(getattr(failed.value, "__notes__", ()))
    assert ("in step" in where) == (fails == "raises")


def test_an_environment_that_cannot_be_made_names_the_constructor(open_sampler: Open) -> None:
    parent = os.getpid()

    def make() -> Any:
        if os.getpid() != parent:
            raise OSError("no simulator here")
        return Numbered()

    with pytest.raises(EnvironmentFailedError, match="failed in making it: OSError: no simulator"):
        open_sampler(make)


def test_a_worker_that_dies_in_its_first_reset_is_told_with_how(open_sampler: Open) -> None:
    parent = os.getpid()

    class Deadly(Numbered):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if os.getpid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().reset(seed=seed)

    with pytest.raises(
        EnvironmentFailedError,
        match=r"'Walk' \(1 of 4\) failed in reset: its worker process was killed by signal 9",
    ):
        open_sampler(Deadly)


def test_too_little_shared_memory_is_told() -> None:
    # A quarter of a petabyte.
    space = gymnasium.spaces.Box(0, 1, (2**8, 2**10), numpy.uint8)
    with pytest.raises(RequestError, match="of shared memory, which cannot be had"):
        SharedColumns(space, gymnasium.spaces.Discrete(2), 2**30)
