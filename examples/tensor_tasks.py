"""Vector environments in torch: CartPole and Pendulum as Gymnasium has them, on any device."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

__all__ = ["TensorCartPole", "TensorPendulum"]


class _TensorVector(VectorEnv[Any, Any, Any]):
    """Episodes of at most `max_episode_steps`; a step reads no value of any tensor.

    With `autoreset` "same_step" the first observation of the next episode is returned and the last
    one is `infos["final_obs"]`; with "next_step" the next step only resets.
    """

    def __init__(
        self,
        num_envs: int,
        device: str,
        max_episode_steps: int,
        autoreset: str,
        bounds: tuple[float, ...],
    ) -> None:
        """`bounds`: first states are between minus and plus these, one for each column."""
        mode = AutoresetMode[autoreset.upper()]
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = num_envs
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._same_step = mode == AutoresetMode.SAME_STEP
        self._longest = max_episode_steps
        self._generator = torch.Generator(device)
        self._bounds = torch.tensor(bounds, device=device)
        self._state = torch.zeros(num_envs, len(bounds), device=device)
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._ended = torch.zeros(num_envs, dtype=torch.bool, device=device)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Tensor, dict[str, Any]]:
        """Reset all."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self._state = self._first_states()
        self._steps = torch.zeros_like(self._steps)
        self._ended = torch.zeros_like(self._ended)
        return self._observe(self._state), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all."""
        state, rewards, terminated = self._move(self._state, actions)
        steps = self._steps + 1
        truncated = ~terminated & (steps >= self._longest)
        infos: dict[str, Any] = {}
        restarting = terminated | truncated
        if self._same_step:
            infos = {"final_obs": self._observe(state), "_final_obs": restarting}
        else:
            restarting, self._ended = self._ended, restarting & ~self._ended
            terminated, truncated = terminated & ~restarting, truncated & ~restarting
            rewards = rewards * ~restarting
        self._state = torch.where(restarting.unsqueeze(1), self._first_states(), state)
        self._steps = torch.where(restarting, 0, steps)
        return self._observe(self._state), rewards, terminated, truncated, infos

    def _first_states(self) -> Tensor:
        shape, device = self._state.shape, self._state.device
        drawn = torch.rand(shape, generator=self._generator, device=device)
        return (2 * drawn - 1) * self._bounds

    def _observe(self, state: Tensor) -> Tensor:
        raise NotImplementedError

    def _move(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next states, the rewards, and where a terminal state is reached."""
        raise NotImplementedError


class TensorCartPole(_TensorVector):
    """`CartPole-v1` in torch."""

    def __init__(
        self,
        num_envs: int,
        device: str = "cpu",
        *,
        max_episode_steps: int = 500,
        autoreset: str = "same_step",
    ) -> None:
        high = numpy.array([4.8, numpy.inf, 24 * math.pi / 180, numpy.inf], numpy.float32)
        self.single_observation_space = spaces.Box(-high, high)
        self.single_action_space = spaces.Discrete(2)
        super().__init__(num_envs, device, max_episode_steps, autoreset, (0.05,) * 4)

    def _observe(self, state: Tensor) -> Tensor:
        return state

    def _move(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, speed, angle, turning = state.unbind(1)
        force = actions.to(state.dtype) * 20.0 - 10.0
        cosine, sine = angle.cos(), angle.sin()
        push = (force + 0.05 * turning.square() * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine.square() / 1.1))
        drive = push - 0.05 * turn * cosine / 1.1
        moved = torch.stack(
            (x + 0.02 * speed, speed + 0.02 * drive, angle + 0.02 * turning, turning + 0.02 * turn),
            dim=1,
        )
        fallen = (moved[:, 0].abs() > 2.4) | (moved[:, 2].abs() > 12 * math.pi / 180)
        return moved, torch.ones_like(x), fallen


class TensorPendulum(_TensorVector):
    """`Pendulum-v1` in torch."""

    def __init__(
        self,
        num_envs: int,
        device: str = "cpu",
        *,
        max_episode_steps: int = 200,
        autoreset: str = "same_step",
    ) -> None:
        high = numpy.array([1.0, 1.0, 8.0], numpy.float32)
        self.single_observation_space = spaces.Box(-high, high)
        self.single_action_space = spaces.Box(-2.0, 2.0, (1,))
        super().__init__(num_envs, device, max_episode_steps, autoreset, (math.pi, 1.0))

    def _observe(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind(1)
        return torch.stack((angle.cos(), angle.sin(), speed), dim=1)

    def _move(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, speed = state.unbind(1)
        torque = actions[:, 0].clamp(-2.0, 2.0)
        upright = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = upright.square() + 0.1 * speed.square() + 0.001 * torque.square()
        faster = (speed + (15.0 * angle.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        moved = torch.stack((angle + faster * 0.05, faster), dim=1)
        return moved, -cost, torch.zeros_like(angle, dtype=torch.bool)
