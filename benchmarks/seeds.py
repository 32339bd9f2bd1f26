"""Several seeds at a time against one after another: wall time and CPU time.

python benchmarks/seeds.py [--steps 100000] [--rounds 3] [--tracked]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import attrs

SEEDS, JOBS = 4, 2
QUIET = 0.2
"""The load below which wall times of a round mean something."""


@attrs.frozen
class Measured:
    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tracked", action="store_true")
    given = parser.parse_args()
    options = ["--algo", "a2c", "--env", "CartPole-v1", "--steps", str(given.steps), "--quiet"]
    if not given.tracked:
        options += ["--set", "tracking.enabled=false"]
    one_by_one = [[*options, "--seed", str(seed)] for seed in range(SEEDS)]
    together = [[*options, "--seeds", str(SEEDS), "--jobs", str(JOBS)]]
    faster, cheaper = [], []
    for number in range(given.rounds):
        load = os.getloadavg()[0]
        # The order changes, so that neither always meets the busier machine.
        if number % 2:
            after, before = measure(together), measure(one_by_one)
        else:
            before, after = measure(one_by_one), measure(together)
        faster.append(before.wall / after.wall)
        cheaper.append(after.cpu / before.cpu)
        print(
            f"load {load:4.2f}{' ' if load < QUIET else '*'}  one by one {before.wall:6.1f} s "
            f"({before.cpu:6.1f} CPU)  together {after.wall:6.1f} s ({after.cpu:6.1f} CPU)  "
            f"{faster[-1]:4.2f} x as fast, {cheaper[-1]:4.2f} of the CPU time",
            flush=True,
        )
    print(
        f"median: {statistics.median(faster):.2f} x as fast, "
        f"{statistics.median(cheaper):.2f} of the CPU time   (*: not quiet)"
    )


def measure(commands: Sequence[Sequence[str]]) -> Measured:
    """The commands one after another, on a new folder of runs."""
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "RLPLUG_HOME": home}
        started, used = time.perf_counter(), _used()
        for command in commands:
            subprocess.run(
                [sys.executable, "-m", "rlplug", "run", *command], env=environ, check=True
            )
        return Measured(time.perf_counter() - started, _used() - used)


def _used() -> float:
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    main()
