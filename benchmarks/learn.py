"""Whether algorithms learn what they should: tasks with thresholds, for seeds fixed beforehand.

    python benchmarks/learn.py                         all tasks, one after the other
    python benchmarks/learn.py dqn hopper              some of them
    python benchmarks/learn.py dqn --seeds 1 2 --set double=true

Each seed is trained, and its best or its last checkpoint plays fresh episodes. A task is learned
if enough of its seeds come to its mean return; of `no_memory` and `no_bonus`, none or few may.
Exits with 1 if one is not.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy
from gymnasium import spaces

import rlplug

FRESH = 10_000
"""Added to the seed: the episodes of the last evaluation are no others' episodes."""


@dataclass(frozen=True)
class Task:
    """What is trained, and which mean return is asked for."""

    algorithm: str
    options: Mapping[str, Any]
    enough: float
    env: str | Callable[..., Any] = ""
    """Empty: that of the preset, with its steps."""
    steps: int = 0
    addons: Sequence[str] = ()
    checkpoint: str = "best"
    episodes: int = 100
    seeds: Sequence[int] = field(default=(1, 2, 3, 4, 5))
    wanted: Callable[[float], bool] = lambda share: share >= 0.8
    """Whether this share of the seeds may reach it."""


MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))


class Maze(gymnasium.Env[Any, Any]):
    """Six rooms of 5 × 5 in a row, with doors in opposite corners; reward 1 at the end of the last.

    Random actions reach the end in hardly any of a thousand episodes.
    """

    def __init__(self, rooms: int = 6, size: int = 5, limit: int = 200) -> None:
        self.width, self.height, self.limit = rooms * (size + 1) - 1, size, limit
        self.walls = numpy.zeros((self.width, self.height), bool)
        for wall in range(size, self.width, size + 1):
            self.walls[wall] = True
            # Doors are at the bottom and at the top in turn.
            self.walls[wall, 0 if (wall // (size + 1)) % 2 else size - 1] = False
        self.observation_space = spaces.Discrete(self.width * self.height)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start in the first corner."""
        super().reset(seed=seed)
        self.place, self.steps = (0, 0), 0
        return 0, {}

    def step(self, action: Any) -> Any:
        """Move, unless there is a wall."""
        self.steps += 1
        x, y = (here + by for here, by in zip(self.place, MOVES[int(action)], strict=True))
        if 0 <= x < self.width and 0 <= y < self.height and not self.walls[x, y]:
            self.place = (x, y)
        place, reached = self.place, self.place[0] == self.width - 1
        seen = place[0] * self.height + place[1]
        return seen, float(reached), reached, self.steps >= self.limit, {}


def corridor() -> gymnasium.Env[Any, Any]:
    """10 steps with a sign at the start: only a memory can tell where to turn."""
    from rlplug.testing.probes import t_maze

    return t_maze(length=10)


CORRIDOR = {
    "sampling.num_envs": 8,
    "n_steps": 32,
    "batch_size": 64,
    "learning_rate": 0.003,
    "memory_size": 32,
}
SPREAD = {
    "evaluation.episodes": 0,
    "sampling.num_envs": 16,
    "n_steps": 100,
    "batch_size": 1200,
    "n_epochs": 10,
    "learning_rate": 2e-3,
    "ent_coef": 0.005,
    "gamma": 0.95,
    "env.normalize_reward": True,
}
TWO_STEP = {
    "evaluation.episodes": 0,
    "sampling.num_envs": 8,
    # All actions at random, as in the paper: what is learned is the optimum.
    "exploration_final_eps": 1.0,
    "learning_starts": 500,
    "buffer_size": 5_000,
    "batch_size": 64,
    "net_arch": [64],
    "train_freq": 1,
    "gradient_steps": 2,
    "target_update_interval": 400,
}
ROOMS = {
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "batch_size": 64,
    "buffer_size": 50_000,
    "learning_starts": 500,
    "train_freq": 1,
    "gradient_steps": 1,
    "target_update_interval": 50,
    "exploration_fraction": 0.2,
    "double": True,
    "evaluation.every": 5_000,
    "evaluation.episodes": 1,
}
# The bonus ends before the run does, so that the last policy looks for the reward alone.
BONUS = {"addons.rnd.coef": [[0, 1.0], [30_000, 1.0], [36_000, 0.0]]}
RANDOM_SPREAD = -26.3
"""Mean return of random actions in simple_spread_v3, over 1,000 episodes."""


def spread(**options: Any) -> Task:
    """Three agents that share one module come to 10 above random actions."""
    env = "pettingzoo:mpe/simple_spread_v3"
    options = {**SPREAD, **options}
    return Task("ppo", options, RANDOM_SPREAD + 10, env, 200_000, checkpoint="last")


TASKS = {
    "dqn": Task("dqn", {"run.preset": "cartpole"}, 450),
    "ppo": Task("ppo", {"run.preset": "cartpole"}, 475),
    "pendulum": Task("ppo", {"run.preset": "pendulum"}, -250),
    "memory": Task("ppo", {**CORRIDOR, "memory": "lstm"}, 0.9, corridor, 16_000),
    # 0 is what guessing earns; 0.35 is 3.5 deviations of the mean of 100 guesses.
    "no_memory": Task("ppo", CORRIDOR, 0.35, corridor, 16_000, wanted=lambda share: share == 0),
    "sac": Task("sac", {"run.preset": "pendulum"}, -200, checkpoint="last"),
    "td3": Task("td3", {"run.preset": "pendulum"}, -200, checkpoint="last"),
    "hopper": Task(
        *("sac", {"run.preset": "hopper"}, 1_500),
        checkpoint="last",
        episodes=20,
        seeds=(1, 2, 3),
        wanted=lambda share: share >= 0.6,
    ),
    "bonus": Task("dqn", {**ROOMS, **BONUS}, 1, Maze, 60_000, ["rnd"], "last", 1),
    "no_bonus": Task(
        *("dqn", ROOMS, 1, Maze, 60_000, [], "last", 1), wanted=lambda share: share <= 0.2
    ),
    "spread": spread(),
    "mappo": spread(central_critic=True),
    # A sum of values cannot tell that 8 can be reached, a mixing network can.
    "two_step": Task(
        *("vdn", {**TWO_STEP, "mixing": "qmix"}, 8, "examples.agent_tasks:TwoStep", 20_000),
        checkpoint="last",
        episodes=4,
        seeds=(1, 2, 3),
        wanted=lambda share: share == 1,
    ),
}


def main() -> int:
    """Train and judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    options: dict[str, Any] = {"tracking.enabled": False}
    for setting in given.set:
        key, _, value = setting.partition("=")
        options[key] = tomllib.loads(f"value = {value}")["value"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        names = given.tasks or list(TASKS)
        passed = [learned(name, given.seeds, options) for name in names]
    return 0 if all(passed) else 1


def learned(name: str, seeds: Sequence[int] | None, options: Mapping[str, Any]) -> bool:
    """Train all seeds of a task and print what they came to."""
    task = TASKS[name]
    print(f"{name}: {task.algorithm}, {task.checkpoint} checkpoints, {task.episodes} episodes")
    print(f"{'seed':>6}{'at step':>10}{'mean':>12}{'lowest':>12}{'CPU s':>8}")
    reached = []
    for seed in seeds or task.seeds:
        began = time.process_time()
        result = rlplug.run(
            task.algorithm,
            task.env,
            steps=task.steps,
            seed=seed,
            addons=task.addons,
            options={**task.options, **options},
        )
        seconds = time.process_time() - began
        played = rlplug.evaluate(
            result.folder,
            env=task.env if callable(task.env) else "",
            checkpoint=task.checkpoint,
            episodes=task.episodes,
            seed=seed + FRESH,
        )
        mean, lowest = (played.metrics[f"eval/return_{part}"] for part in ("mean", "min"))
        print(
            f"{seed:>6}{played.step:>10,}{mean:>12,.2f}{lowest:>12,.2f}{seconds:>8.0f}", flush=True
        )
        reached.append(mean >= task.enough)
    passed = task.wanted(sum(reached) / len(reached))
    verdict = "as wanted" if passed else "NOT as wanted"
    print(f"{sum(reached)} of {len(reached)} seeds reach {task.enough:,g}: {verdict}\n", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
