"""The rate of whole runs through `rlplug.run`."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from measure import ALPHA, L2_LAMBDA

import rlplug.bandits  # noqa: F401 # registers the environments
from rlplug import run


def main() -> None:
    """Print the answer as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    print(json.dumps(_rate(said.num_envs, said.steps, said.seed)))


def _rate(num_envs: int, steps: int, seed: int) -> dict[str, Any]:
    """One run on 20 arms and 50 features; what is not the loop is opening and closing."""
    options = {
        "alpha": ALPHA,
        "l2_lambda": L2_LAMBDA,
        "env.num_arms": 20,
        "env.context_dim": 50,
        "sampling.num_envs": num_envs,
        "tracking.enabled": False,
    }
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    result = run("linucb", "LinearBandit-v0", steps=steps, seed=seed, options=options)
    wall, cpu = time.perf_counter() - wall_start, time.process_time() - cpu_start
    loop = result.metrics["time/seconds"]
    return {
        "steps": result.step,
        "wall": loop,
        "cpu": cpu - (wall - loop),
        "regret": result.metrics["rollout/regret_total"] / result.step,
        "around": wall - loop,
    }


if __name__ == "__main__":
    main()
