"""Walkers: an environment of a few lines, with one agent and with several."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces
from pettingzoo import ParallelEnv

__all__ = ["Many", "One"]


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
