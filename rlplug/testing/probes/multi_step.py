"""Probes whose episodes have several steps: discounting, termination, time limits, memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

__all__ = ["DelayedReward", "DiscountedTwoSteps", "Ending", "StayOrLeave", "TMaze", "TimeLimit"]


class _Steps(gymnasium.Env[Any, Any]):
    """Two actions, and states observed as one-hot vectors."""

    metadata: dict[str, Any] = {"render_modes": []}
    states = 1

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(0.0, 1.0, (self.states,), numpy.float32)
        self.action_space: Any = spaces.Discrete(2)
        self._at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        self._at = 0
        return self._one_hot(0), {}

    def _one_hot(self, state: int) -> Any:
        return numpy.eye(self.states, dtype=numpy.float32)[state]


class DiscountedTwoSteps(_Steps):
    """Rewards 0 and 1: the values are γ and 1."""

    states = 2

    def step(self, action: Any) -> Any:
        """A reward at the second step."""
        self._at += 1
        ended = self._at == 2
        return self._one_hot(1), float(ended), ended, False, {}


class DelayedReward(_Steps):
    """Action 1 gives a reward of 1 one step later, action 0 one of −1."""

    states = 3

    def step(self, action: Any) -> Any:
        """A reward of 0, then that of the first action."""
        if self._at == 0:
            self._at = 1 + int(action)
            return self._one_hot(self._at), 0.0, False, False, {}
        return self._one_hot(self._at), 2.0 * self._at - 3.0, True, False, {}


class TimeLimit(_Steps):
    """Reward 1 at every step, truncated after 4 steps: the value is 1/(1 − γ)."""

    length = 4

    def step(self, action: Any) -> Any:
        """A reward of 1."""
        self._at += 1
        return self._one_hot(0), 1.0, False, self._at == self.length, {}


class Ending(_Steps):
    """Three rewards of 1, then termination: values 1 + γ + γ², 1 + γ and 1."""

    states = 3

    def step(self, action: Any) -> Any:
        """A reward of 1."""
        self._at += 1
        return self._one_hot(min(self._at, 2)), 1.0, self._at == 3, False, {}


class StayOrLeave(_Steps):
    """Action 0 gives 1 and ends the episode; action 1 gives 2 and leads to a step without reward.

    If action 0 truncates, its value is 1/(1 − γ), more than that of action 1; if it terminates, its
    value is 1.
    """

    states = 2

    def __init__(self, *, truncated: bool) -> None:
        super().__init__()
        self.truncated = truncated

    def step(self, action: Any) -> Any:
        """Stay, leave, or the last step after leaving."""
        if self._at == 1:
            return self._one_hot(1), 0.0, True, False, {}
        if int(action) == 0:
            return self._one_hot(0), 1.0, not self.truncated, self.truncated, {}
        self._at = 1
        return self._one_hot(1), 2.0, False, False, {}


class TMaze(gymnasium.Env[Any, Any]):
    """A sign at the start shows which way to turn at the end of a corridor of `length` steps.

    Observations are the sign (−1 or 1, 0 after the first step) and whether this is the junction,
    where the reward is 1 or −1. Without memory, the mean return is 0.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, length: int = 3) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (2,), numpy.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.length = length
        self.sign = 1.0
        self._at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode with a random sign."""
        super().reset(seed=seed)
        self.sign = float(self.np_random.choice((-1.0, 1.0)))
        self._at = 0
        return numpy.array([self.sign, 0.0], numpy.float32), {}

    def step(self, action: Any) -> Any:
        """A step along the corridor, or the turn."""
        if self._at == self.length:
            reward = self.sign * (2.0 * int(action) - 1.0)
            return numpy.array([0.0, 1.0], numpy.float32), reward, True, False, {}
        self._at += 1
        junction = float(self._at == self.length)
        return numpy.array([0.0, junction], numpy.float32), 0.0, False, False, {}
