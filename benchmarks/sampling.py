"""How well worker processes are used, beside Gymnasium's AsyncVectorEnv.

python benchmarks/sampling.py [--rounds 3] [--seconds 5]

Environments that sleep for a random time are stepped by workers in lock-step, for rollouts (as many
rows of each environment), and as a stream (rows of whichever environments bring them), with a
policy that costs nothing. Large observations measure what a step costs beside the environment.
Figures of AsyncVectorEnv are of its steps alone, without acting and storing; so are those of
"steps alone" of workers. Medians of rounds, in which all cases take turns. Last, how many
environments were acted for at once within limits of batches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import gymnasium
import numpy
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from rlplug import Acted, ActInput, Module
from rlplug.batch.nested import first_leaf
from rlplug.config.sections import SamplingSection
from rlplug.envs import Environments
from rlplug.envs.sync import SyncVector
from rlplug.envs.workers import WorkerVector
from rlplug.feeds import OpenFeed
from rlplug.sampling import Collector

MEDIAN, SIGMA = 0.005, 1.0
"""Of the seconds that a step sleeps, lognormal."""


class Sleeps(gymnasium.Env[Any, Any]):
    """Sleeps in each step; in a share of them, 200 times longer."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, long_share: float = 0.0) -> None:
        self._long_share = long_share
        self._seen = numpy.zeros(4, numpy.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen, {}

    def step(self, action: Any) -> Any:
        if self._long_share:
            is_long = self.np_random.random() < self._long_share
            time.sleep(MEDIAN * (200 if is_long else 1))
        else:
            time.sleep(MEDIAN * float(numpy.exp(SIGMA * self.np_random.normal())))
        return self._seen, 1.0, False, False, {}


class Frames(gymnasium.Env[Any, Any]):
    """Returns the same stack of four frames, at once."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), numpy.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._seen = numpy.zeros((4, 84, 84), numpy.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen, {}

    def step(self, action: Any) -> Any:
        return self._seen, 1.0, False, False, {}


class Idle(Sleeps):
    """Returns a few numbers, at once."""

    def step(self, action: Any) -> Any:
        return self._seen, 1.0, False, False, {}


class Zero(Module):
    """Always chooses action 0."""

    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(numpy.zeros(len(first_leaf(act.observations)), numpy.int64))


def by_sampler(
    make: Callable[[], Any], num_envs: int, workers: int, seconds: float, **options: Any
) -> tuple[float, float]:
    """Environment steps per second, and the share of the workers' time spent stepping."""
    with in_workers(make, num_envs, workers, **options) as sampler:
        return rate_of(sampler, seconds, workers)


@contextmanager
def in_workers(
    make: Callable[[], Any], num_envs: int, workers: int, **options: Any
) -> Iterator[Collector]:
    """A sampler of worker processes; options of `[sampling]` are among its own."""
    names = [field.name for field in attrs.fields(SamplingSection)]
    limits = {name: options.pop(name) for name in names if name in options}
    vector = WorkerVector(make, num_envs, workers)
    try:
        yield Collector(
            Environments(vector, "benchmark", AutoresetMode.SAME_STEP),
            {"default": Zero()},
            {"default": OpenFeed()},
            options=SamplingSection(backend="workers", num_envs=num_envs, **limits),
            seed=0,
            **options,
        )
    finally:
        vector.close()


def print_batches(seconds: float) -> None:
    """How many environments were acted for at once, within which limits."""
    title = "inference batches of 16 environments that sleep, 16 workers"
    print(f"\n{title:<62}{'smallest':>8} {'largest':>8}   shares of batches of")
    for least, most, wait in ((1, 0, 0.0), (1, 4, 0.0), (4, 8, 0.0), (4, 8, 0.01), (16, 16, 0.0)):
        limits = {"min_batch_size": least, "max_batch_size": most, "max_wait_time": wait}
        with in_workers(Sleeps, 16, 16, count=64, **limits) as sampler:
            sampler.start()
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                sampler.collect(0)
            found = sampler.take_metrics()
        kinds = "sampling/batches_of_"
        shares = {
            int(name.removeprefix(kinds)): one for name, one in found.items() if kinds in name
        }
        told = ", ".join(
            f"{size}{f'–{2 * size - 1}' if size > 1 else ''}: {shares[size]:.0%}"
            for size in sorted(shares)
        )
        name = f"min {least}, max {most or 'none'}, wait {1000 * wait:g} ms"
        sizes = (found[f"sampling/batch_size_{end}"] for end in ("min", "max"))
        print(f"  {name:<60}" + "".join(f"{size:>8.0f} " for size in sizes) + f"  {told}")


def rate_of(sampler: Collector, seconds: float, workers: int) -> tuple[float, float]:
    """Collect for so long, after a warm-up."""
    sampler.start()
    sampler.collect(0)
    sampler.take_metrics()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        experience = sampler.collect(steps)
        rows = experience.stepped
        steps += len(experience.columns["rewards"]) if rows is None else int(rows.sum())
    took = time.perf_counter() - began
    busy = sampler.take_metrics().get("time/worker_seconds", 0.0)
    return steps / took, busy / took / workers


def by_gymnasium(make: Callable[[], Any], num_envs: int, seconds: float) -> tuple[float, float]:
    """The same with Gymnasium's vector environment of one process for each environment."""
    vector = AsyncVectorEnv([make] * num_envs, shared_memory=True)
    try:
        return steps_of(vector, seconds)
    finally:
        vector.close()


def steps_of(vector: Any, seconds: float) -> tuple[float, float]:
    """Step a vector environment for so long, without acting or storing, after a warm-up."""
    actions = numpy.zeros(vector.num_envs, numpy.int64)
    # As the samplers do: the same environments sleep for the same times.
    Environments(vector, "benchmark", AutoresetMode.SAME_STEP).reset(0)
    for _ in range(3):
        vector.step(actions)
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        vector.step(actions)
        steps += vector.num_envs
    return steps / (time.perf_counter() - began), 0.0


def by_transport(
    make: Callable[[], Any], num_envs: int, workers: int, seconds: float
) -> tuple[float, float]:
    """Workers in lock-step without a sampler, by the calls that are measured of Gymnasium's."""
    vector = WorkerVector(make, num_envs, workers)
    try:
        return steps_of(vector, seconds)
    finally:
        vector.close()


def in_process(make: Callable[[], Any], num_envs: int, seconds: float) -> tuple[float, float]:
    """The same in one process."""
    sampler = Collector(
        Environments(SyncVector([make] * num_envs), "benchmark", AutoresetMode.SAME_STEP),
        {"default": Zero()},
        {"default": OpenFeed()},
        seed=0,
        steps=16,
    )
    return rate_of(sampler, seconds, 1)


def cases(seconds: float) -> dict[str, dict[str, Callable[[], tuple[float, float]]]]:
    """Measurements by part."""
    often, seldom = Sleeps, partial(Sleeps, 0.005)
    few = partial(by_sampler, often, 16, 8, seconds)
    many = partial(by_sampler, seldom, 32, 32, seconds)
    frames = partial(by_sampler, Frames, 64, 4, seconds)
    return {
        "16 environments that sleep (lognormal), 8 workers": {
            "stream": partial(few, count=64),
            "rollouts of 64 rows": partial(few, steps=64),
            "lock-step": partial(few, steps=16, force_sync=True),
            "lock-step, 16 workers": partial(
                by_sampler, often, 16, 16, seconds, steps=16, force_sync=True
            ),
            "AsyncVectorEnv, 16 processes": partial(by_gymnasium, often, 16, seconds),
        },
        "32 workers, 0.5 % of steps 200 times longer": {
            "stream, a quarter ready": partial(many, count=128, min_batch_size=8),
            "rollouts of 64 rows": partial(many, steps=64),
            "lock-step": partial(many, steps=16, force_sync=True),
            "AsyncVectorEnv, 32 processes": partial(by_gymnasium, seldom, 32, seconds),
        },
        "64 environments of 84×84×4 bytes, 4 workers": {
            "stream": partial(frames, count=256),
            "rollouts of 16 rows": partial(frames, steps=16),
            "lock-step": partial(frames, steps=16, force_sync=True),
            "steps alone": partial(by_transport, Frames, 64, 4, seconds),
            "in this process": partial(in_process, Frames, 64, seconds),
            "AsyncVectorEnv, 64 processes": partial(by_gymnasium, Frames, 64, seconds),
        },
        "2 environments that take no time, 2 workers": {
            "lock-step": partial(by_sampler, Idle, 2, 2, seconds, steps=16, force_sync=True),
            "steps alone": partial(by_transport, Idle, 2, 2, seconds),
            "in this process": partial(in_process, Idle, 2, seconds),
            "AsyncVectorEnv, 2 processes": partial(by_gymnasium, Idle, 2, seconds),
        },
    }


def main() -> None:
    """Print a table: steps per second, share of the workers' time, ratio to AsyncVectorEnv."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--part", type=int, choices=(1, 2, 3, 4, 5), help="only this part")
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")
    parts = list(cases(given.seconds).items())
    for title, part in parts if given.part is None else parts[given.part - 1 : given.part]:
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in part}
        for _ in range(given.rounds):
            for name, measure in part.items():
                measured[name].append(measure())
        rates = {name: statistics.median(rate for rate, _ in got) for name, got in measured.items()}
        theirs = next(rate for name, rate in rates.items() if name.startswith("Async"))
        print(f"\n{title:<52}{'steps/s':>10}{'µs/step':>9}{'stepping':>10}{'× theirs':>10}")
        for name, rate in rates.items():
            share = statistics.median(share for _, share in measured[name])
            busy = f"{share:.0%}" if share else ""
            print(f"  {name:<50}{rate:>10,.0f}{1e6 / rate:>9.1f}{busy:>10}{rate / theirs:>10.2f}")
    if given.part in (None, 5):
        print_batches(given.seconds)


if __name__ == "__main__":
    main()
