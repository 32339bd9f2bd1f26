"""Environments in worker processes, one vector at a time: seeds, signals, threads, and endings."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces

from rlplug.envs.sync import SyncVector
from rlplug.envs.workers import WorkerVector
from rlplug.errors import EnvironmentFailedError
from rlplug.seeding import derive
from tests.worker_games import DrawsAll, Numbered, Walk

Open = Callable[..., WorkerVector]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Makes vectors, which are closed in the end."""
    vectors: list[WorkerVector] = []

    def start(*args: Any, **options: Any) -> WorkerVector:
        vectors.append(WorkerVector(*args, **options))
        return vectors[-1]

    yield start
    for vector in vectors:
        vector.close()


def pids() -> list[int]:
    """The worker processes, in their order."""
    children = [one for one in multiprocessing.active_children() if one.name.startswith("rlplug")]
    return [one.pid or 0 for one in sorted(children, key=lambda one: one.name)]


def stepped(vector: WorkerVector) -> Any:
    """What all environments show after a step."""
    vector.step(numpy.zeros(vector.num_envs, int))
    return vector.columns.observations.tolist()


class DrawsWide(DrawsAll):
    """With all digits."""

    observation_space: Any = spaces.Box(0, 1, (3,), numpy.float64)

    def _drawn(self) -> Any:
        return numpy.array([numpy.random.random(), random.random(), float(torch.rand(()))])


def test_generators_of_a_worker_begin_with_a_seed_of_its_own(opened: Open) -> None:
    seen, _ = opened(DrawsWide, 2, 2, seed=3).reset(seed=0)
    for number in range(2):
        seed = derive(3, "worker", number, 0)
        of_torch = float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
        of_numpy = numpy.random.RandomState(seed % 2**32).random()
        assert seen[number].tolist() == [of_numpy, random.Random(seed).random(), of_torch]


def test_generators_that_were_saved_go_on_in_as_many_workers(opened: Open) -> None:
    first = opened(DrawsWide, 2, 2, seed=3)
    first.reset(seed=0)
    state = [saved.pickled for saved in first.workers.call("save")]
    expected = stepped(first)
    again = opened(DrawsWide, 2, 2, seed=4)
    again.workers.call("restore", state)
    assert stepped(again) == expected


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_signals_are_left_to_the_process_that_started_the_workers(opened: Open) -> None:
    vector = opened(Numbered, 2, 2)
    vector.reset(seed=0)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
        for pid in pids():
            os.kill(pid, getattr(signal, name))
        stepped(vector)


# -- shares and requests ------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_seeds_reach_the_environments_that_they_are_for(opened: Open, workers: int) -> None:
    one, other = opened(Walk, 5, workers), SyncVector([Walk] * 5)
    for seed in (7, [5, 4, 3, 2, 1], None):
        assert one.reset(seed=seed)[0].tolist() == other.reset(seed=seed)[0].tolist()


def test_some_environments_are_stepped_and_the_others_wait(opened: Open) -> None:
    vector = opened(lambda: Numbered(0.0), 5, 2)
    vector.reset(seed=[10, 11, 12, 13, 14])
    assert vector.workers.receive() == []
    for envs in ([3, 1], [4], [1, 0, 2]):
        before = vector.columns.observations[:, 1:3].copy()
        vector.send(numpy.array(envs), numpy.ones(len(envs), int))
        assert sorted(env for env, _ in vector.workers.receive_all()) == sorted(envs)
        moved = (vector.columns.observations[:, 1:3] != before).any(1)
        assert numpy.flatnonzero(moved).tolist() == sorted(envs)
        assert vector.columns.observations[:, 0].tolist() == [10, 11, 12, 13, 14]


def test_environments_are_closed_with_their_worker(opened: Open, tmp_path: Path) -> None:
    parent = os.getpid()

    class Closes(Walk):
        def close(self) -> None:
            (tmp_path / f"{os.getpid()}-{id(self)}").touch()
            # The others of the worker are closed all the same.
            if os.getpid() != parent:
                raise OSError("cannot close")

    vector = opened(Closes, 3, 2)
    started = list(map(str, pids()))
    vector.close()
    closed = [one.name.partition("-")[0] for one in tmp_path.iterdir()]
    assert [closed.count(pid) for pid in started] == [1, 2]


# -- failures -----------------------------------------------------------------------------------


class Breaks(Numbered):
    """Raises in a step with action 2, or if its number is 99 in a reset."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed == 99:
            raise LookupError("nowhere")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if action == 2:
            raise ZeroDivisionError("no more")
        return super().step(action)


def test_a_step_of_all_raises_where_an_environment_is_lost(opened: Open) -> None:
    vector = opened(Breaks, 2, 2, name="Breaks")
    vector.reset(seed=0)
    with pytest.raises(EnvironmentFailedError, match=r"^environment 'Breaks' \(2 of 2\) failed in"):
        vector.step(numpy.array([0, 2]))


def test_a_reset_that_raises_ends_it(opened: Open) -> None:
    vector = opened(Breaks, 3, 1)
    with pytest.raises(
        EnvironmentFailedError,
        match=r"^environment 'the environment' \(2 of 3\) failed in reset: LookupError: nowhere",
    ):
        vector.reset(seed=[0, 99, 1])
