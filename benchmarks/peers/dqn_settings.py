"""What every DQN of the comparison is set to, and how each is timed."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version

__all__ = [
    "BATCH_SIZE",
    "BUFFER_SIZE",
    "ENV",
    "EXPLORATION",
    "GAMMA",
    "LEARNING_RATE",
    "LEARNING_STARTS",
    "MAX_GRAD_NORM",
    "NET_ARCH",
    "TARGET_INTERVAL",
    "TRAIN_FREQ",
    "measure",
    "timed",
]

_PARSER = argparse.ArgumentParser()
_PARSER.add_argument("part", choices=["run", "learn"])
_PARSER.add_argument("--seed", type=int, default=1)
_PARSER.add_argument("--count", type=int, required=True, help="steps, or updates")
_PARSER.add_argument("--batch", type=int, default=128)
_PARSER.add_argument("--env", default="CartPole-v1")
_PARSER.add_argument("--net-arch", type=int, nargs="+", default=[120, 84])
_SAID = _PARSER.parse_args()

ENV: str = _SAID.env
NET_ARCH: list[int] = _SAID.net_arch
LEARNING_RATE = 2.5e-4
BATCH_SIZE: int = _SAID.batch
BUFFER_SIZE = 10_000
LEARNING_STARTS = 1_000
TRAIN_FREQ = 10
TARGET_INTERVAL = 500
GAMMA = 0.99
EXPLORATION = (1.0, 0.05, 0.5)
"""First chance of a random action, last one, and the share of the run in between."""
MAX_GRAD_NORM = 10.0

Timed = tuple[float, float]


def timed(work: Callable[[], object]) -> Timed:
    """Wall and CPU seconds of some work."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(
    distribution: str,
    *,
    run: Callable[[int, int], Timed] | None = None,
    learn: Callable[[int, int, int], Timed] | None = None,
) -> None:
    """Do the part that the command line names, and print what it took as a line of JSON."""
    import torch

    torch.set_num_threads(1)
    if _SAID.part == "run" and run is not None:
        wall, cpu = run(_SAID.count, _SAID.seed)
    elif _SAID.part == "learn" and learn is not None:
        wall, cpu = learn(_SAID.count, _SAID.batch, _SAID.seed)
    else:
        raise SystemExit(3)
    answer = {"version": version(distribution), "count": _SAID.count, "wall": wall, "cpu": cpu}
    print(json.dumps(answer))
