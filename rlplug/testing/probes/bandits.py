"""Probes for bandits."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
from gymnasium import spaces

__all__ = ["AbsentBestArm", "KnownBestArm"]


class KnownBestArm(gymnasium.Env[Any, Any]):
    """Four arms pay 0.2, 0.4, 0.9 and 0.6, with a little noise; the context says nothing.

    All arms pay: who does not explore is content with the first that it tries.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    means = (0.2, 0.4, 0.9, 0.6)

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(0.0, 1.0, (1,), numpy.float32)
        self.action_space: Any = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The next round."""
        super().reset(seed=seed)
        return numpy.ones(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        """What the arm pays."""
        reward = self.means[int(action)] + 0.05 * self.np_random.standard_normal()
        return numpy.ones(1, numpy.float32), float(reward), True, False, {}


class AbsentBestArm(gymnasium.Env[Any, Any]):
    """Arms with features, which pay the first of them: 0, 0.5 or 1; the last one is absent.

    Choosing an absent arm raises.
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
        """The next round."""
        super().reset(seed=seed)
        arms = numpy.column_stack((self.np_random.permutation(3) / 2, self.np_random.random(3)))
        mask = numpy.ones(3, numpy.int8)
        mask[arms[:, 0].argmax()] = 0
        self.round = {"context": numpy.ones(1), "arms": arms, "action_mask": mask}
        return self.round, {}

    def step(self, action: Any) -> Any:
        """What the arm pays."""
        arm = int(action)
        if not self.round["action_mask"][arm]:
            raise ValueError(f"arm {arm} is absent: {self.round['action_mask'].tolist()}")
        return self.round, float(self.round["arms"][arm, 0]), True, False, {}
