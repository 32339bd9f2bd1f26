"""Environments that tests share."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit


class OneStep(gymnasium.Env[Any, Any]):
    """Pays `scale` for action 1; its episodes have one step."""

    observation_space: Any = spaces.Box(0, 1, (2,), numpy.float64)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(2), {}

    def step(self, action: Any) -> Any:
        return self.np_random.random(2), self.scale * float(action), True, False, {}


class Counts(gymnasium.Env[Any, Any]):
    """Observes the step, and one number drawn at the reset."""

    observation_space: Any = spaces.Box(-99, 99, (2,), numpy.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.drawn = 0, self.np_random.random()
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._seen(), 3.0, False, False, {}

    def _seen(self) -> Any:
        return numpy.array([self.count, self.drawn], numpy.float32)


def limited() -> gymnasium.Env[Any, Any]:
    """`Counts` with episodes of four steps."""
    return TimeLimit(Counts(), 4)


class Told(gymnasium.Env[Any, Any]):
    """Shows these observations and infos in turn; every second step ends an episode."""

    action_space: Any = spaces.Discrete(2)

    def __init__(self, space: Any, observations: Any, infos: Any = ()) -> None:
        self.observation_space = space
        self._observations, self._infos = iter(observations), iter(infos)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return next(self._observations), next(self._infos, {})

    def step(self, action: Any) -> Any:
        self._steps += 1
        return *self.reset()[:1], 1.0, self._steps % 2 == 0, False, next(self._infos, {})
