"""Probes with actions that are not one of a few: Box, MultiDiscrete and MultiBinary."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

__all__ = ["BothBits", "BoxByObservation", "BoxTarget", "BoxThenReward", "TwoChoices"]


class _Continuing(gymnasium.Env[Any, Any]):
    """One number observed, −1 or 1; the rewards are the negative distance to the best action."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, action_space: Any) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (1,), numpy.float32)
        self.action_space: Any = action_space
        self.observation = 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        self.observation = float(self.np_random.choice(self.observed()))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        """The only step of an episode."""
        if numpy.shape(action) != self.action_space.shape:
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        return self.observe(), float(self.reward(action)), True, False, {}

    def observe(self) -> Any:
        """The observation as an array."""
        return numpy.array([self.observation], numpy.float32)

    def observed(self) -> tuple[float, ...]:
        """What may be observed."""
        return (1.0,)

    def reward(self, action: Any) -> float:
        """The reward of the action."""
        raise NotImplementedError


class BoxTarget(_Continuing):
    """Actions from −1 to 3; the best one is 2: the reward falls with the square of the distance."""

    best = 2.0

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 3.0, (1,), numpy.float32))

    def reward(self, action: Any) -> float:
        """Minus the squared distance to the best action."""
        return -float((action[0] - self.best) ** 2)


class BoxByObservation(BoxTarget):
    """The best action is 0 at observation −1, and 2 at 1."""

    def observed(self) -> tuple[float, ...]:
        """−1 or 1."""
        return (-1.0, 1.0)

    def reward(self, action: Any) -> float:
        """Minus the squared distance to the best action."""
        return -float((action[0] - 1.0 - self.observation) ** 2)


class BoxThenReward(gymnasium.Env[Any, Any]):
    """As `BoxTarget`, but the reward comes one step later, for the first action."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 3.0, (2,), numpy.float32)
        self.action_space: Any = spaces.Box(-1.0, 3.0, (1,), numpy.float32)
        self._taken: float | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        self._taken = None
        return numpy.array([1.0, 0.0], numpy.float32), {}

    def step(self, action: Any) -> Any:
        """The first step shows what was done, the second one pays for it."""
        if self._taken is None:
            self._taken = float(action[0])
            return numpy.array([0.0, self._taken], numpy.float32), 0.0, False, False, {}
        reward = -((self._taken - 2.0) ** 2)
        return numpy.array([0.0, self._taken], numpy.float32), reward, True, False, {}


class TwoChoices(_Continuing):
    """MultiDiscrete actions, the best one is (1, 2): one point for each of them."""

    def __init__(self) -> None:
        super().__init__(spaces.MultiDiscrete([2, 3]))

    def reward(self, action: Any) -> float:
        """A point for each right choice."""
        return float(action[0] == 1) + float(action[1] == 2)


class BothBits(_Continuing):
    """MultiBinary actions, the best one is (1, 0): a point for each right bit."""

    def __init__(self) -> None:
        super().__init__(spaces.MultiBinary(2))

    def reward(self, action: Any) -> float:
        """A point for each right bit."""
        return float(action[0] == 1) + float(action[1] == 0)
