"""DQN in a maze whose only reward is at its end, with and without `--with rnd`.

    python benchmarks/rnd.py [--seeds 1-5] [--steps 60000] [--rooms 6]

Random actions reach the end in hardly any of a thousand episodes. The bonus ends before the run
does, so that the policy of the end looks for the reward alone. A seed has solved the maze if the
policy of its last evaluation reaches the end. Exits with 1 unless four of five seeds do with RND,
and at most one of five without.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

from rlplug import run
from rlplug.runs.seeds.asked import parse_seeds

MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))


class Maze(gymnasium.Env[Any, Any]):
    """Rooms of 5 × 5 in a row, with doors in opposite corners; reward 1 at the end of the last."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, rooms: int = 6, size: int = 5, limit: int = 200) -> None:
        self.width, self.height = rooms * (size + 1) - 1, size
        self.walls = numpy.zeros((self.width, self.height), bool)
        for wall in range(size, self.width, size + 1):
            self.walls[wall] = True
            # Doors are at the bottom and at the top in turn.
            self.walls[wall, 0 if (wall // (size + 1)) % 2 else size - 1] = False
        self.limit = limit
        self.observation_space = spaces.Discrete(self.width * self.height)
        self.action_space = spaces.Discrete(4)
        self.place = (0, 0)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start in the first corner."""
        super().reset(seed=seed)
        self.place, self.steps = (0, 0), 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        """Move, unless there is a wall."""
        self.steps += 1
        x, y = (here + by for here, by in zip(self.place, MOVES[int(action)], strict=True))
        if 0 <= x < self.width and 0 <= y < self.height and not self.walls[x, y]:
            self.place = (x, y)
        reached = self.place[0] == self.width - 1
        return self._observation(), float(reached), reached, self.steps >= self.limit, {}

    def _observation(self) -> int:
        return self.place[0] * self.height + self.place[1]


OPTIONS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "batch_size": 64,
    "buffer_size": 50_000,
    "learning_starts": 500,
    "train_freq": 1,
    "gradient_steps": 1,
    "target_update_interval": 50,
    "exploration_fraction": 0.2,
    "exploration_final_eps": 0.05,
    "double": True,
    "evaluation.every": 5_000,
    "evaluation.episodes": 1,
    "tracking.enabled": False,
}


def solved(seed: int, steps: int, rooms: int, addons: list[str], **options: Any) -> float:
    """The return of the last evaluation: 1 if the end was reached."""
    result = run(
        "dqn",
        lambda: Maze(rooms),
        steps=steps,
        seed=seed,
        addons=addons,
        options={**OPTIONS, **options},
    )
    return result.metrics["eval/return_mean"]


def random_successes(rooms: int, episodes: int = 1_000) -> int:
    """How many episodes of random actions reach the end."""
    maze, random, reached = Maze(rooms), numpy.random.default_rng(0), 0
    for _ in range(episodes):
        maze.reset()
        for action in random.integers(4, size=maze.limit):
            if maze.step(action)[2]:
                reached += 1
                break
    return reached


def main() -> int:
    """Run all seeds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1-5", help="for example 1-5")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--rooms", type=int, default=6)
    given = parser.parse_args()
    print(f"random actions: {random_successes(given.rooms)} of 1,000 episodes reach the end")
    counts = {}
    cases: tuple[tuple[str, list[str]], ...] = (("dqn + rnd", ["rnd"]), ("dqn", []))
    for name, addons in cases:
        began = time.process_time()
        # Full for the first half of the run, none in the last two fifths.
        ends = [[0, 1.0], [given.steps // 2, 1.0], [given.steps * 3 // 5, 0.0]]
        options = {"addons.rnd.coef": ends} if addons else {}
        results = []
        for seed in parse_seeds(given.seeds):
            results.append(solved(seed, given.steps, given.rooms, addons, **options))
            print(f"{name}, seed {seed}: {results[-1]:g}", flush=True)
        counts[name] = sum(result > 0 for result in results)
        seconds = time.process_time() - began
        print(f"{name:<10} solved {counts[name]} of {len(results)}  {seconds:.0f} s of CPU time")
    enough = counts["dqn + rnd"] >= 0.8 * len(results) and counts["dqn"] <= 0.2 * len(results)
    return 0 if enough else 1


if __name__ == "__main__":
    raise SystemExit(main())
