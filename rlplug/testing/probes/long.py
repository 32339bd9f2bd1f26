"""Probes whose episodes have several steps: discounting, delay, ends and time limits."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

__all__ = ["DelayedReward", "DiscountedTwoSteps", "Ending", "StayOrLeave", "TimeLimit"]


class _Steps(gymnasium.Env[Any, Any]):
    """Two actions, and states that are observed as one number of several being 1."""

    metadata: dict[str, Any] = {"render_modes": []}
    states = 1

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(0.0, 1.0, (self.states,), numpy.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Back to the first step."""
        super().reset(seed=seed)
        self.at = 0
        return self.seen(0), {}

    def seen(self, state: int) -> Any:
        """The state, one-hot."""
        return numpy.eye(self.states, dtype=numpy.float32)[state]


class DiscountedTwoSteps(_Steps):
    """0, then 1: the values are γ and 1."""

    states = 2

    def step(self, action: Any) -> Any:
        """The reward comes with the second step."""
        self.at += 1
        ended = self.at == 2
        return self.seen(1), float(ended), ended, False, {}


class DelayedReward(_Steps):
    """Action 1 leads to a state that pays 1, action 0 to one that takes 1, one step later."""

    states = 3

    def step(self, action: Any) -> Any:
        """Nothing, then the reward of the state."""
        if self.at == 0:
            self.at = 1 + int(action)
            return self.seen(self.at), 0.0, False, False, {}
        return self.seen(self.at), 2.0 * self.at - 3.0, True, False, {}


class TimeLimit(_Steps):
    """Always 1, without an end but cut after 4 steps: the value is 1/(1 − γ)."""

    length = 4

    def step(self, action: Any) -> Any:
        """1, and now and then a cut."""
        self.at += 1
        return self.seen(0), 1.0, False, self.at == self.length, {}


class Ending(_Steps):
    """Three times 1, then the end: values 1 + γ + γ², 1 + γ and 1."""

    states = 3

    def step(self, action: Any) -> Any:
        """1, and the next state."""
        self.at += 1
        return self.seen(min(self.at, 2)), 1.0, self.at == 3, False, {}


class StayOrLeave(_Steps):
    """Action 0 stays and earns 1, then the episode ends; action 1 earns 2 and leads outside.

    If the end is only a time limit (`truncated`), staying is worth 1/(1 − γ), and more than
    leaving; if it is an end, staying is worth 1. Outside there is nothing more to earn.
    """

    states = 2

    def __init__(self, *, truncated: bool) -> None:
        super().__init__()
        self.truncated = truncated

    def step(self, action: Any) -> Any:
        """Stay, leave, or the last step outside."""
        if self.at == 1:
            return self.seen(1), 0.0, True, False, {}
        if int(action) == 0:
            return self.seen(0), 1.0, not self.truncated, self.truncated, {}
        self.at = 1
        return self.seen(1), 2.0, False, False, {}
