"""Measure what a network adds where rewards are not linear: python benchmarks/neural_linucb.py

Each algorithm plays `RingsBandit-v0` with its default options and with the same seeds.
"""

from __future__ import annotations

import statistics
import sys
import time

from rlplug import run

SEEDS = 5
STEPS = 6_000
MARGIN = 0.4


def played(algorithm: str, seed: int) -> float:
    """The mean reward over all decisions of one run: the best arm pays 1, any other nothing."""
    start = time.process_time()
    result = run(
        algorithm,
        "RingsBandit-v0",
        steps=STEPS,
        seed=seed,
        options={"tracking.enabled": False, "compute.num_threads": 1},
    )
    mean = 1.0 - result.metrics["rollout/regret_total"] / STEPS
    seconds = time.process_time() - start
    print(f"  {algorithm:<15} seed {seed}   {mean:.3f}   {seconds:.1f} s of CPU", flush=True)
    return mean


def main() -> int:
    """Print every run, the medians, and whether the margin holds for every seed."""
    names = ("linucb", "lints", "neural-linucb")
    earned: dict[str, list[float]] = {name: [] for name in names}
    print(f"Mean reward on RingsBandit-v0, {STEPS:,} steps")
    for seed in range(SEEDS):
        for name in names:
            earned[name].append(played(name, seed))
    for name, values in earned.items():
        print(f"  {name:<15} median   {statistics.median(values):.3f}")
    pairs = zip(earned["neural-linucb"], earned["linucb"], strict=True)
    least = min(neural - linear for neural, linear in pairs)
    holds = least >= MARGIN
    words = f"neural-linucb earns at least {MARGIN} more than linucb with every seed"
    print(f"\n{'holds' if holds else 'FAILS'}  {words}: {least:.3f}")
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
