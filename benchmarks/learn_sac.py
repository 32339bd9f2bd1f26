"""Whether SAC and TD3 learn what they should, for seeds fixed beforehand.

python benchmarks/learn_sac.py                   all of them, one after the other
python benchmarks/learn_sac.py --only sac        SAC on Pendulum-v1; also td3, hopper
python benchmarks/learn_sac.py --only hopper --seeds 2

Each seed is trained with a preset of the plugin. What it has become at the end of the run plays
fresh greedy episodes, and so does the best checkpoint by evaluation; the first is what counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from typing import Any

FRESH = 10_000
"""Added to the seed: the episodes of the last evaluation are no others' episodes."""


@dataclass(frozen=True)
class Task:
    """A preset, and what is asked for: a mean return, from so many of these seeds."""

    name: str
    algorithm: str
    preset: str
    enough: float
    wanted: int
    seeds: tuple[int, ...]
    episodes: int = 100


TASKS = (
    Task("sac", "sac", "pendulum", -200.0, 4, (1, 2, 3, 4, 5)),
    Task("td3", "td3", "pendulum", -200.0, 4, (1, 2, 3, 4, 5)),
    Task("hopper", "sac", "hopper", 1_500.0, 2, (1, 2, 3), 20),
)


def main() -> None:
    """Train every seed, let it play, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", choices=[task.name for task in TASKS])
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of those that are judged")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    said = parser.parse_args()
    import tomllib

    options: dict[str, Any] = {"tracking.enabled": False}
    for one in said.set:
        key, _, value = one.partition("=")
        options[key] = tomllib.loads(f"value = {value}")["value"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        for task in TASKS:
            if said.only in (None, task.name):
                judge(task, tuple(said.seeds or task.seeds), options)


def judge(task: Task, seeds: tuple[int, ...], options: dict[str, Any]) -> None:
    """Train all seeds of a task, and print what came out."""
    print(f"{task.algorithm}, preset {task.preset}: means of {task.episodes} episodes")
    print(f"{'seed':>6}{'at the end':>12}{'lowest':>10}{'best at':>10}{'mean':>10}{'CPU s':>8}")
    means = [learned(task, seed, options) for seed in seeds]
    reached = sum(mean >= task.enough for mean in means)
    verdict = ""
    if seeds == task.seeds:
        verdict = f", {task.wanted} wanted: {'yes' if reached >= task.wanted else 'NO'}"
    print(f"{reached} of {len(means)} seeds reach {task.enough:,g}{verdict}\n", flush=True)


def learned(task: Task, seed: int, options: dict[str, Any]) -> float:
    """The mean return at the end of one run."""
    from rlplug import run
    from rlplug.runs.evaluate import evaluate

    began = time.process_time()
    result = run(task.algorithm, seed=seed, options={"run.preset": task.preset, **options})
    spent = time.process_time() - began
    last, best = (
        evaluate(str(result.folder), checkpoint=which, episodes=task.episodes, seed=seed + FRESH)
        for which in ("last", "best")
    )
    mean, lowest = (last.metrics[f"eval/return_{name}"] for name in ("mean", "min"))
    line = f"{seed:>6}{mean:>12,.1f}{lowest:>10,.1f}"
    print(
        f"{line}{best.step:>10,}{best.metrics['eval/return_mean']:>10,.1f}{spent:>8.0f}", flush=True
    )
    return mean


if __name__ == "__main__":
    main()
