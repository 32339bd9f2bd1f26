"""A runner that steps nothing, and tells what it was asked for."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy

from rlplug.feeds import Experience
from rlplug.scale.cluster import this_node


class Telling:
    """Its environments, two of them, see the version of the weights, and are rewarded by calls."""

    def __init__(self, index: int, life: int, dies_at: int) -> None:
        self.index, self.life, self.dies_at = index, life, dies_at
        self.asked: list[Any] = []
        self.calls = 0

    def build(self) -> Any:
        self.asked.append("build")
        sys.stdout.write(f"runner {self.index} is built\n")
        sys.stdout.flush()
        return None, None

    def node(self) -> Any:
        import ray

        return this_node(ray), None

    def start(self, seed: int | None, league: Any) -> Any:
        self.asked.append(("start", seed, league))
        return None, None

    def collect(self, weights: dict[str, Any], timestep: int, league: Any) -> Any:
        if timestep == self.dies_at:
            # Its last answer, which a busy machine may not have sent yet, would die with it.
            time.sleep(1.0)
            os._exit(3)
        if timestep < 0:
            return None, (f"runner {self.index} fails", ("try: less",), timestep < -1)
        self.calls += 1
        first = float(weights["modules"]["default"]["weight"].ravel()[0])
        columns = {
            "observations": numpy.full((2, 1), weights["version"], numpy.float32),
            "rewards": numpy.array([self.calls, 100.0 * self.index + timestep]),
            "weights": numpy.array([first, self.life]),
            "terminated": numpy.zeros(2, bool),
            "truncated": numpy.zeros(2, bool),
        }
        experience = Experience(columns, steps=1, num_envs=2)
        told = {"experience": experience, "step_seconds": 2.0 - self.index, "results": []}
        return told, None

    def take_sums(self) -> Any:
        one = self.index + 1.0
        # Counts and sums of rewards, regrets, returns and lengths.
        return {"default": numpy.array([[1, one], [0, 0], [1, 10.0 * one], [1, one]])}, None

    def get_state(self, environments: bool) -> Any:
        reason = "" if environments else f"runner {self.index} was not asked"
        saved = b"saved" if environments else b""
        return {"index": self.index, "environments": saved, "not_saved": reason}, None

    def set_state(self, state: dict[str, Any], seed: int, league: Any) -> Any:
        self.asked.append(("set_state", state, seed, league))
        return state["not_saved"], None

    def told(self) -> Any:
        return self.asked, None
