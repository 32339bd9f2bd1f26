"""Whether PPO learns what it should, for seeds fixed beforehand.

python benchmarks/learn_ppo.py                     CartPole-v1, Pendulum-v1, a maze; seeds 1 to 5
python benchmarks/learn_ppo.py --preset pendulum --seeds 1 --set gamma=0.95
python benchmarks/learn_ppo.py --preset maze       only a memory can tell where to turn

CartPole-v1 and Pendulum-v1 have 100,000 steps and the preset that is shipped. The best checkpoint
by evaluation plays 100 fresh greedy episodes; at least four of five seeds must come to the mean
return that is asked for.

The maze is a corridor of 10 steps with a sign at its start, and has 16,000 steps. With an LSTM at
least four of five seeds must come to 0.9 of 1; without memory no seed may come to 0.35, where 0 is
what guessing earns: 3.5 deviations of the mean of 100 guesses.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from typing import Any

ENOUGH = {"cartpole": 475.0, "pendulum": -250.0, "maze": 0.9}
GUESSED = 0.35
"""What nobody without memory comes to in the maze."""
MAZE: dict[str, Any] = {
    "run.env": "RememberedTurn-v0",
    "run.steps": 16_000,
    "sampling.num_envs": 8,
    "n_steps": 32,
    "batch_size": 64,
    "learning_rate": 0.003,
    "memory_size": 32,
}
EPISODES = 100
FRESH = 10_000
"""Added to the seed: the episodes of the last evaluation are no others' episodes."""


def main() -> None:
    """Train every seed of every preset, let the best checkpoints play, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--preset", nargs="+", choices=ENOUGH, default=list(ENOUGH))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    said = parser.parse_args()
    import tomllib

    options: dict[str, Any] = {"tracking.enabled": False}
    for one in said.set:
        key, _, value = one.partition("=")
        options[key] = tomllib.loads(f"value = {value}")["value"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        for preset in said.preset:
            if preset == "maze":
                _judge_memory(said.seeds, options)
            else:
                print(f"ppo, preset {preset}")
                _reached(_means(said.seeds, {**options, "run.preset": preset}), ENOUGH[preset])


def _judge_memory(seeds: list[int], options: dict[str, Any]) -> None:
    import gymnasium

    gymnasium.register(MAZE["run.env"], "rlplug.testing.probes:TMaze", kwargs={"length": 10})
    print("ppo in the maze, with an LSTM")
    _reached(_means(seeds, {**MAZE, "memory": "lstm", **options}), ENOUGH["maze"])
    print("ppo in the maze, without memory")
    means = _means(seeds, {**MAZE, "memory": "none", **options})
    lucky = sum(mean >= GUESSED for mean in means)
    verdict = "NO" if lucky else "yes"
    print(f"{lucky} of {len(means)} seeds reach {GUESSED:g}, 0 wanted: {verdict}\n")


def _means(seeds: list[int], options: dict[str, Any]) -> list[float]:
    widths = {
        "seed": 6,
        "best at": 10,
        "mean of 100": 13,
        "lowest": 8,
        "at the end": 12,
        "CPU s": 8,
    }
    print("".join(f"{name:>{width}}" for name, width in widths.items()))
    return [learned(seed, options) for seed in seeds]


def _reached(means: list[float], enough: float) -> None:
    reached, wanted = sum(mean >= enough for mean in means), -(-4 * len(means) // 5)
    verdict = "yes" if reached >= wanted else "NO"
    print(f"{reached} of {len(means)} seeds reach {enough:g}, {wanted} wanted: {verdict}\n")


def learned(seed: int, options: dict[str, Any]) -> float:
    """The mean return of the best checkpoint of one run."""
    from rlplug import run
    from rlplug.runs.evaluate import evaluate

    began = time.process_time()
    result = run("ppo", seed=seed, options=options)
    spent = time.process_time() - began
    last = result.metrics["eval/return_mean"]
    played = evaluate(str(result.folder), checkpoint="best", episodes=EPISODES, seed=seed + FRESH)
    mean, lowest = played.metrics["eval/return_mean"], played.metrics["eval/return_min"]
    line = f"{seed:>6}{played.step:>10,}{mean:>13.2f}{lowest:>8.0f}"
    print(f"{line}{last:>12.2f}{spent:>8.1f}", flush=True)
    return mean


if __name__ == "__main__":
    main()
