"""Probes in which the entropy of the policy is all that matters, or part of it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

__all__ = ["EntropyAhead", "NoReward"]


class NoReward(gymnasium.Env[Any, Any]):
    """Episodes of one step without any reward, and actions from −1 to 3."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (1,), numpy.float32)
        self.action_space: Any = spaces.Box(-1.0, 3.0, (1,), numpy.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        return numpy.ones(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        """The only step of an episode."""
        return numpy.ones(1, numpy.float32), 0.0, True, False, {}


class EntropyAhead(gymnasium.Env[Any, Any]):
    """Without rewards: the higher the first action, the likelier are ten more steps.

    Where values include the entropy of the policy ahead, as in SAC, high first actions are best,
    unless `reward`, of episodes that end at once, is worth more.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    length = 10

    def __init__(self, *, continuous: bool, high: float = 3.0, reward: float = 0.0) -> None:
        self.observation_space: Any = spaces.Box(0.0, 1.0, (2,), numpy.float32)
        box, two = spaces.Box(-1.0, high, (1,), numpy.float32), spaces.Discrete(2)
        self.action_space: Any = box if continuous else two
        self._continuous, self._size, self._reward = continuous, high + 1, reward
        self._at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        self._at = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        """The first step decides, the next ones change nothing."""
        if self._at == 0:
            chance = (float(action[0]) + 1) / self._size if self._continuous else float(action)
            if self.np_random.random() >= chance:
                return self._observe(), self._reward, True, False, {}
        self._at += 1
        return self._observe(), 0.0, self._at > self.length, False, {}

    def _observe(self) -> Any:
        return numpy.array([self._at == 0, self._at / (self.length + 1)], numpy.float32)
