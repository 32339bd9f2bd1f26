"""Probes whose episodes have one step: what a state and an action are worth."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

__all__ = ["ConstantReward", "MaskedBest", "RewardByAction", "RewardByBoth", "RewardByObservation"]


class _OneStep(gymnasium.Env[Any, Any]):
    """One observation, one action, one reward."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (1,), numpy.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.observation = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """A new episode."""
        super().reset(seed=seed)
        self.observation = self.observe()
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        """Its only step."""
        return self.seen(), float(self.reward(int(action))), True, False, {}

    def seen(self) -> Any:
        """The observation as an array."""
        return numpy.array([self.observation], numpy.float32)

    def observe(self) -> float:
        """What is seen in the next episode."""
        return 1.0

    def reward(self, action: int) -> float:
        """What the action earns."""
        raise NotImplementedError


class ConstantReward(_OneStep):
    """Always 1: the value of the only state is 1."""

    def reward(self, action: int) -> float:
        """Always 1."""
        return 1.0


class RewardByObservation(_OneStep):
    """What is observed, −1 or 1, is the reward: values are −1 and 1."""

    def observe(self) -> float:
        """Heads or tails."""
        return float(self.np_random.choice((-1.0, 1.0)))

    def reward(self, action: int) -> float:
        """What was seen."""
        return self.observation


class RewardByAction(_OneStep):
    """Action 1 earns 1, action 0 loses 1."""

    def reward(self, action: int) -> float:
        """1 or −1."""
        return 2.0 * action - 1.0


class RewardByBoth(_OneStep):
    """Seeing 1, action 1 earns 1; seeing −1, action 0 does; the others lose 1."""

    def observe(self) -> float:
        """Heads or tails."""
        return float(self.np_random.choice((-1.0, 1.0)))

    def reward(self, action: int) -> float:
        """1 or −1."""
        return self.observation * (2.0 * action - 1.0)


class MaskedBest(_OneStep):
    """Three actions earn 0, 0.5 and 1; in half of the episodes the last one is masked.

    Choosing a masked action raises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3)
        self.mask = numpy.ones(3, numpy.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """A new episode with a mask of its own."""
        observation, _ = super().reset(seed=seed)
        self.mask = numpy.array([1, 1, self.np_random.integers(2)], numpy.int8)
        return observation, {"action_mask": self.mask.copy()}

    def step(self, action: Any) -> Any:
        """Its only step."""
        if not self.mask[int(action)]:
            raise ValueError(f"action {int(action)} is masked: {self.mask.tolist()}")
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"action_mask": self.mask.copy()}

    def reward(self, action: int) -> float:
        """Half of the action's number."""
        return 0.5 * action
