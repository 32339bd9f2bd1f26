"""A probe for memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

__all__ = ["TMaze"]


class TMaze(gymnasium.Env[Any, Any]):
    """A sign at the start says which way to turn at the end of a corridor of `length` steps.

    Observed are the sign (−1, 1, and 0 after the first step) and whether this is the junction,
    where the right turn earns 1 and the wrong one −1. Without memory, the mean return is 0.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, length: int = 3) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (2,), numpy.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.length = length
        self.sign = 1.0
        self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """A new sign."""
        super().reset(seed=seed)
        self.sign = float(self.np_random.choice((-1.0, 1.0)))
        self.at = 0
        return numpy.array([self.sign, 0.0], numpy.float32), {}

    def step(self, action: Any) -> Any:
        """One step on, or the turn."""
        if self.at == self.length:
            reward = self.sign * (2.0 * int(action) - 1.0)
            return numpy.array([0.0, 1.0], numpy.float32), reward, True, False, {}
        self.at += 1
        junction = float(self.at == self.length)
        return numpy.array([0.0, junction], numpy.float32), 0.0, False, False, {}
