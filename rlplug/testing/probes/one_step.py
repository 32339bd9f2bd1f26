"""Probes whose episodes have one step: values of states and actions, masks, exploration."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

__all__ = [
    "AbsentBestArm",
    "ConstantReward",
    "KnownBestArm",
    "MaskedBest",
    "RewardByAction",
    "RewardByBoth",
    "RewardByObservation",
]


class _OneStep(gymnasium.Env[Any, Any]):
    """One observation, one action, one reward."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (1,), numpy.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.observation = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        self.observation = self.observe()
        return self._array(), {}

    def step(self, action: Any) -> Any:
        """The only step of an episode."""
        return self._array(), float(self.reward(int(action))), True, False, {}

    def _array(self) -> Any:
        """The observation as an array."""
        return numpy.array([self.observation], numpy.float32)

    def observe(self) -> float:
        """The observation of the next episode."""
        return 1.0

    def reward(self, action: int) -> float:
        """The reward of the action."""
        raise NotImplementedError


class ConstantReward(_OneStep):
    """Always 1: the value of the only state is 1."""

    def reward(self, action: int) -> float:
        """Always 1."""
        return 1.0


class RewardByObservation(_OneStep):
    """The reward is the observation, −1 or 1: values are −1 and 1."""

    def observe(self) -> float:
        """−1 or 1, at random."""
        return float(self.np_random.choice((-1.0, 1.0)))

    def reward(self, action: int) -> float:
        """The observation."""
        return self.observation


class RewardByAction(_OneStep):
    """The reward is 1 for action 1 and −1 for action 0."""

    def reward(self, action: int) -> float:
        """1 or −1."""
        return 2.0 * action - 1.0


class RewardByBoth(_OneStep):
    """The reward is 1 for action 1 at observation 1 and action 0 at −1, else −1."""

    def observe(self) -> float:
        """−1 or 1, at random."""
        return float(self.np_random.choice((-1.0, 1.0)))

    def reward(self, action: int) -> float:
        """1 or −1."""
        return self.observation * (2.0 * action - 1.0)


class MaskedBest(_OneStep):
    """The rewards of three actions are 0, 0.5 and 1; half of the episodes mask the last one.

    Choosing a masked action raises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3)
        self.mask = numpy.ones(3, numpy.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode with a new mask."""
        observation, _ = super().reset(seed=seed)
        self.mask = numpy.array([1, 1, self.np_random.integers(2)], numpy.int8)
        return observation, {"action_mask": self.mask.copy()}

    def step(self, action: Any) -> Any:
        """The only step of an episode."""
        if not self.mask[int(action)]:
            raise ValueError(f"action {int(action)} is masked: {self.mask.tolist()}")
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"action_mask": self.mask.copy()}

    def reward(self, action: int) -> float:
        """Half of the action's number."""
        return 0.5 * action


class KnownBestArm(gymnasium.Env[Any, Any]):
    """Four arms pay 0.2, 0.4, 0.9 and 0.6, with a little noise; the context says nothing.

    All rewards are positive: without exploration the first arm tried stays the best.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    means = (0.2, 0.4, 0.9, 0.6)

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(0.0, 1.0, (1,), numpy.float32)
        self.action_space: Any = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start a round."""
        super().reset(seed=seed)
        return numpy.ones(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        """The reward of the arm."""
        reward = self.means[int(action)] + 0.05 * self.np_random.standard_normal()
        return numpy.ones(1, numpy.float32), float(reward), True, False, {}


class AbsentBestArm(gymnasium.Env[Any, Any]):
    """The reward is the first feature of the arm: 0, 0.5 or 1; the arm with 1 is masked.

    Choosing a masked arm raises.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Dict(
            {
                "context": spaces.Box(0.0, 1.0, (1,), numpy.float64),
                "arms": spaces.Box(0.0, 1.0, (3, 2), numpy.float64),
                "action_mask": spaces.MultiBinary(3),
            }
        )
        self.action_space: Any = spaces.Discrete(3)
        self.round: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start a round."""
        super().reset(seed=seed)
        arms = numpy.column_stack((self.np_random.permutation(3) / 2, self.np_random.random(3)))
        mask = numpy.ones(3, numpy.int8)
        mask[arms[:, 0].argmax()] = 0
        self.round = {"context": numpy.ones(1), "arms": arms, "action_mask": mask}
        return self.round, {}

    def step(self, action: Any) -> Any:
        """The reward of the arm."""
        arm = int(action)
        if not self.round["action_mask"][arm]:
            raise ValueError(f"arm {arm} is absent: {self.round['action_mask'].tolist()}")
        return self.round, float(self.round["arms"][arm, 0]), True, False, {}
