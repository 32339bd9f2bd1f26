"""Whole runs through `rlplug.run`: their rate, or what LinUCB earns on digits."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import gymnasium
import numpy
from measure import ALPHA, L2_LAMBDA

import rlplug.bandits  # noqa: F401 # registers the environments
from rlplug import run

DIGITS = 1797
"""Rows of the table: one pass."""


def main() -> None:
    """Print the answer as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["run", "digits"])
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    if said.part == "run":
        print(json.dumps(_rate(said.num_envs, said.steps, said.seed)))
    else:
        print(json.dumps(_digits(range(said.seed, said.seed + said.orders))))


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


def _digits(orders: range) -> dict[str, list[float]]:
    """The mean reward of one pass over the table, for each order and way to choose."""
    return {
        "alpha = 1": [_earned(seed, 1.0) for seed in orders],
        "greedy": [_earned(seed, 0.0) for seed in orders],
        "random": [_by_chance(seed) for seed in orders],
    }


def _earned(seed: int, alpha: float) -> float:
    options = {
        "alpha": alpha,
        "l2_lambda": 1.0,
        "env.table": "digits",
        "env.preprocess": "unit",
        "tracking.enabled": False,
    }
    result = run("linucb", "ClassificationBandit-v0", steps=DIGITS, seed=seed, options=options)
    # The right class earns 1, so that a step earns what it does not regret.
    return 1.0 - result.metrics["rollout/regret_total"] / DIGITS


def _by_chance(seed: int) -> float:
    env = gymnasium.make("ClassificationBandit-v0", table="digits", preprocess="unit")
    random = numpy.random.default_rng(seed)
    env.reset(seed=seed)
    earned = []
    for arm in random.integers(10, size=DIGITS):
        earned.append(float(env.step(int(arm))[1]))
        env.reset()
    return statistics.fmean(earned)


if __name__ == "__main__":
    main()
