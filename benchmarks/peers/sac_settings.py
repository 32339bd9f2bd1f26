"""What every SAC and TD3 of the comparison is set to, and how each is timed."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version

__all__ = [
    "ALGORITHM",
    "BATCH_SIZE",
    "BUFFER_SIZE",
    "ENV",
    "GAMMA",
    "LEARNING_RATE",
    "LEARNING_STARTS",
    "NET_ARCH",
    "POLICY_DELAY",
    "TAU",
    "WARM_UP",
    "measure",
]

_PARSER = argparse.ArgumentParser()
_PARSER.add_argument("algorithm", choices=["sac", "td3"])
_PARSER.add_argument("--seed", type=int, default=1)
_PARSER.add_argument("--steps", type=int, required=True)
_PARSER.add_argument("--env", default="Pendulum-v1")
_PARSER.add_argument("--net-arch", type=int, nargs="+", required=True)
_SAID = _PARSER.parse_args()

ALGORITHM: str = _SAID.algorithm
ENV: str = _SAID.env
NET_ARCH: list[int] = _SAID.net_arch
LEARNING_RATE = 3e-4
BATCH_SIZE = 256
BUFFER_SIZE = 50_000
LEARNING_STARTS = 100
TAU = 0.005
GAMMA = 0.99
POLICY_DELAY = 2
WARM_UP = 200
"""Steps of a run before the timed one, which imports everything."""


def measure(distribution: str, run: Callable[[int, int], object]) -> None:
    """Train for the steps that the command line names; print what it took as a line of JSON."""
    import torch

    torch.set_num_threads(1)
    run(WARM_UP, _SAID.seed)
    wall, cpu = time.perf_counter(), time.process_time()
    run(_SAID.steps, _SAID.seed)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    answer = {"version": version(distribution), "count": _SAID.steps, "wall": wall, "cpu": cpu}
    print(json.dumps(answer))
