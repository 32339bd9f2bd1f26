"""Environments with several agents, small enough to know by hand what they give."""

from __future__ import annotations

from typing import Any

import numpy
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Relay(ParallelEnv[str, Any, Any]):  # type: ignore[misc] # untyped in PettingZoo
    """`first` is there in steps 1 and 2 and is terminated; `second` comes after step 1 and is
    truncated in step 4, with which the episode ends. Observations are the number of steps so far;
    rewards are that of the step, for `second` ten times as much."""

    metadata: dict[str, Any] = {"name": "relay"}
    lie = ""

    def __init__(self, lie: str = "") -> None:
        self.possible_agents = ["first", "second"]
        self.agents: list[str] = []
        self.time = 0
        self.lie = lie

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 10, (1,), numpy.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        self.agents = [] if self.lie == "nobody" else ["first"]
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents)
        self.time += 1
        acted = list(self.agents)
        if self.lie == "raises":
            raise ValueError("broken")
        if self.time == 1:
            self.agents = ["first", "stranger" if self.lie == "stranger" else "second"]
        elif self.time == 2:
            self.agents = ["first", "second"] if self.lie == "stays" else ["second"]
        elif self.time == 4 or self.lie == "leaves":
            self.agents = []
        rewards = {agent: self.time * (10.0 if agent == "second" else 1.0) for agent in acted}
        terminated = {agent: agent == "first" and self.time == 2 for agent in acted}
        truncated = {agent: agent == "second" and self.time == 4 for agent in acted}
        return self._seen(), rewards, terminated, truncated, {}

    def render(self) -> Any:
        return numpy.full((32, 32, 3), 20 * self.time, numpy.uint8)

    def _seen(self) -> dict[str, Any]:
        return {agent: numpy.array([self.time], numpy.float32) for agent in self.possible_agents}


class Drawn(Relay):
    """`Relay` with pictures."""

    metadata: dict[str, Any] = {"name": "drawn", "render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str = "") -> None:
        super().__init__()


class Unlike(Relay):
    """`Relay` whose agents have different spaces."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 10, (1 if agent == "first" else 2,), numpy.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2 if agent == "first" else 3)

    def _seen(self) -> dict[str, Any]:
        return {
            "first": numpy.array([self.time], numpy.float32),
            "second": numpy.array([self.time, 1], numpy.float32),
        }


class Countdown(AECEnv[str, Any, Any]):  # type: ignore[misc] # untyped in PettingZoo
    """`left` and `right` take turns; whoever acts gives 1 to the other, and the third action ends
    the episode. Action 1 is allowed in the first turn only."""

    metadata = {"name": "countdown"}

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["left", "right"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict(
            {
                "observation": spaces.Box(0, 3, (1,), numpy.float32),
                "action_mask": spaces.Box(0, 1, (2,), numpy.int8),
            }
        )

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = ["left", "right"]
        self.taken = 0
        self.agent_selection = "left"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> Any:
        mask = numpy.array([1, self.taken == 0], numpy.int8)
        if agent != self.agent_selection or self.taken == 3:
            mask[:] = 0
        return {"observation": numpy.array([self.taken], numpy.float32), "action_mask": mask}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        assert self.observe(agent)["action_mask"][action]
        self.taken += 1
        self._cumulative_rewards[agent] = 0.0
        other = "right" if agent == "left" else "left"
        self.rewards = {agent: 0.0, other: 1.0}
        self._accumulate_rewards()
        if self.taken == 3:
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other
