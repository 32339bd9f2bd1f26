"""Probes of several steps with masks of next actions, and with noise after the first step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

__all__ = ["MaskedNext", "NoisyChoice"]


class MaskedNext(gymnasium.Env[Any, Any]):
    """Action 0 gives 0.5 at once; action 1 leads to a state where the action that pays is masked.

    There, action 1 would give 2 and is never allowed where the first action was 1; it is seen to
    pay in the episodes that begin in that state.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(0.0, 1.0, (2,), numpy.float32)
        self.action_space: Any = spaces.Discrete(2)
        self._at, self._mask = 0, numpy.ones(2, numpy.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode in either state."""
        super().reset(seed=seed)
        self._at = int(self.np_random.integers(2))
        self._mask = numpy.ones(2, numpy.int8)
        return self._observe()

    def step(self, action: Any) -> Any:
        """One step."""
        chosen = int(action)
        if not self._mask[chosen]:
            raise ValueError(f"action {chosen} is masked: {self._mask.tolist()}")
        if self._at == 1:
            observation, info = self._observe()
            return observation, 2.0 * chosen, True, False, info
        if chosen == 0:
            observation, info = self._observe()
            return observation, 0.5, True, False, info
        self._at, self._mask = 1, numpy.array([1, 0], numpy.int8)
        observation, info = self._observe()
        return observation, 0.0, False, False, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        observation = numpy.eye(2, dtype=numpy.float32)[self._at]
        return observation, {"action_mask": self._mask.copy()}


class NoisyChoice(gymnasium.Env[Any, Any]):
    """The first of three steps decides: 0.3 at once for action 0, none for action 1.

    The rewards of the next two steps are noise that no action changes.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(0.0, 1.0, (3,), numpy.float32)
        self.action_space: Any = spaces.Discrete(2)
        self._at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        self._at = 0
        return numpy.eye(3, dtype=numpy.float32)[0], {}

    def step(self, action: Any) -> Any:
        """One step."""
        reward = 0.3 * (int(action) == 0) if self._at == 0 else self.np_random.choice((-0.5, 0.5))
        self._at += 1
        observation = numpy.eye(3, dtype=numpy.float32)[min(self._at, 2)]
        return observation, float(reward), self._at == 3, False, {}
