"""What PPO over runners on a local Ray cluster is set to, and how a training is timed."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version

import psutil
from ppo_settings import PARTS, Part

__all__ = ["PART", "Clock", "measure"]

PART = PARTS["cartpole"]


class Clock:
    """Wall time, and CPU time of this process and all below it: runners, and Ray's own."""

    def start(self) -> None:
        """From here on."""
        self._cpu, self._wall = self._of_all(), time.perf_counter()

    def stop(self) -> None:
        """Up to here."""
        wall, now = time.perf_counter() - self._wall, self._of_all()
        self.wall = wall
        self.processes = len(now)
        self.cpu = sum(spent - self._cpu.get(pid, 0.0) for pid, spent in now.items())

    def _of_all(self) -> dict[int, float]:
        spent = {}
        own = psutil.Process()
        for one in (own, *own.children(recursive=True)):
            try:
                times = one.cpu_times()
            except psutil.Error:
                continue
            spent[one.pid] = times.user + times.system
        return spent


def measure(distribution: str, train: Callable[[Part, int, int, Clock], None]) -> None:
    """Train with so many steps and runners; print what it took as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--runners", type=int, required=True)
    said = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    clock = Clock()
    train(PART, said.steps, said.runners, clock)
    print(
        json.dumps(
            {
                "version": version(distribution),
                "steps": said.steps,
                "wall": clock.wall,
                "cpu": clock.cpu,
                "processes": clock.processes,
            }
        )
    )
