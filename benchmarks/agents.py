"""What several agents cost: agent steps per second, and alike modules trained together.

python benchmarks/agents.py            all
python benchmarks/agents.py agents     8 agents with one module, and 8 environments of one agent
python benchmarks/agents.py modules    16 alike modules, together and one by one
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy
from gymnasium import spaces
from pettingzoo import ParallelEnv

import rlplug

QUIET = {"tracking.enabled": False, "evaluation.episodes": 0, "checkpoint.minutes": 0}
TORCH = {"compute.arrays": "off"}


class One(gymnasium.Env[Any, Any]):
    """A walk of 200 steps with as much arithmetic as CartPole."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10, 10, (4,), numpy.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.walker = Walker(self.np_random)
        return self.walker.seen(), {}

    def step(self, action: Any) -> Any:
        seen, reward, late = self.walker.step(action)
        return seen, reward, False, late, {}


class Many(ParallelEnv[str, Any, Any]):  # type: ignore[misc] # untyped in PettingZoo
    """As many of the same walks, each an agent."""

    metadata = {"name": "many"}

    def __init__(self, count: int = 8) -> None:
        self.possible_agents = [f"walker_{index}" for index in range(count)]
        self.agents: list[str] = []
        self._seen, self._acts = One().observation_space, One().action_space
        self._random = numpy.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return self._seen

    def action_space(self, agent: str) -> Any:
        return self._acts

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._random = numpy.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.walkers = {agent: Walker(self._random) for agent in self.agents}
        return {agent: one.seen() for agent, one in self.walkers.items()}, {}

    def step(self, actions: Any) -> Any:
        seen, rewards, truncated = {}, {}, {}
        for agent, action in actions.items():
            seen[agent], rewards[agent], truncated[agent] = self.walkers[agent].step(action)
        if any(truncated.values()):
            self.agents = []
        return seen, rewards, dict.fromkeys(actions, False), truncated, {}


class Walker:
    """Four numbers that an action pushes."""

    def __init__(self, random: numpy.random.Generator) -> None:
        self.x, self.v, self.a, self.w = random.uniform(-0.05, 0.05, 4).tolist()
        self.taken = 0

    def seen(self) -> Any:
        return numpy.array((self.x, self.v, self.a, self.w), numpy.float32)

    def step(self, action: Any) -> Any:
        force = 0.1 if action == 1 else -0.1
        self.v += force - 0.1 * self.x
        self.x += 0.02 * self.v
        self.w += 0.1 * self.a - force
        self.a = max(min(self.a + 0.02 * self.w, 9.0), -9.0)
        self.taken += 1
        return self.seen(), 1.0 - abs(self.x), self.taken >= 200


def rate(env: Any, steps: int, agents: int, **options: Any) -> float:
    """Agent steps per second of a whole run."""
    began = time.perf_counter()
    run = rlplug.run("ppo", env, steps=steps, options={**QUIET, **options})
    return agents * run.step / (time.perf_counter() - began)


def agents(rounds: int = 3) -> None:
    """8 agents with one module in 8 environments, and 64 environments with one agent."""
    shared = {"n_steps": 64, "batch_size": 512}
    best = [0.0, 0.0]
    for _ in range(rounds):
        one = rate(One, 400_000, 1, **shared, **{"sampling.num_envs": 64})
        many = rate(Many, 50_000, 8, **shared, **{"sampling.num_envs": 8})
        print(
            f"  one agent {one:,.0f}, eight agents {many:,.0f} agent steps per second", flush=True
        )
        best = [max(best[0], one), max(best[1], many)]
    print(f"eight agents: {best[1] / best[0]:.2f} of the rate of one agent (wanted: 0.8)")


def modules(count: int = 16, steps: int = 20_000) -> None:
    """Alike modules, of one agent each."""
    sections = {f"modules.m{index}.agents": f"walker_{index}" for index in range(count)}
    options = {**sections, "env.count": count, "n_steps": 128, "batch_size": 128}
    options["sampling.num_envs"] = 4
    apart = rate(Many, steps, count, **options, **TORCH, **{"learner.join_from": 0})
    print(
        f"{count} modules one by one under torch: {apart:,.0f} agent steps per second", flush=True
    )
    for told, more in (("together with vmap", TORCH), ("as rlplug chooses", {})):
        found = rate(Many, steps, count, **options, **more)
        print(f"  {told}: {found:,.0f}, {found / apart:.1f} times (wanted: 2.5)", flush=True)


if __name__ == "__main__":
    wanted = sys.argv[1:]
    if not wanted or "agents" in wanted:
        agents()
    if not wanted or "modules" in wanted:
        modules()
