"""Running normalisation of observations and rewards that stay on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy
import torch
from torch import Tensor

from rlplug.batch.nested import first_leaf
from rlplug.config.sections import EnvSection
from rlplug.envs.normalization import EPSILON, Normalization, RunningMoments

__all__ = ["TensorNormalization"]

Path = tuple[Any, ...]


class _TensorMoments:
    """Running mean and variance on a device, and what is computed from them for every step."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        # MPS has no float64.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._device = device
        self.put(RunningMoments(shape))

    def put(self, moments: RunningMoments) -> None:
        """Continue from these."""
        self.count = self._tensor(moments.count)
        self.mean, self.variance = self._tensor(moments.mean), self._tensor(moments.variance)
        self._update_scales()

    def copy_to(self, moments: RunningMoments) -> None:
        """Read them; this waits for the device."""
        moments.count = int(self.count)
        moments.mean = self.mean.double().numpy(force=True)
        moments.variance = self.variance.double().numpy(force=True)

    def absorb(self, rows: Tensor, weights: Tensor | None) -> None:
        """Add rows, shape (n, …), each as often as its weight says."""
        rows = rows.to(self._dtype)
        if weights is None:
            added = torch.full_like(self.count, len(rows))
            variance, mean = torch.var_mean(rows, 0, correction=0)
        else:
            of = weights.to(self._dtype).reshape(-1, *(1,) * (rows.dim() - 1))
            added = weights.sum().to(self._dtype)
            mean = (rows * of).sum(0) / added.clamp(min=1)
            variance = ((rows - mean) ** 2 * of).sum(0) / added.clamp(min=1)
        total = self.count + added
        away = mean - self.mean
        squares = self.variance * self.count + variance * added
        squares = squares + away**2 * (self.count * added / total.clamp(min=1))
        self.mean = self.mean + away * (added / total.clamp(min=1))
        self.variance = torch.where(total > 0, squares / total.clamp(min=1), self.variance)
        self.count = total
        self._update_scales()

    def _update_scales(self) -> None:
        self.offset = self.mean.float()
        self.factor = torch.rsqrt(self.variance + EPSILON).float()

    def _tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(numpy.asarray(value, numpy.float64)).to(self._device, self._dtype)


class TensorNormalization(Normalization):
    """`Normalization` with its statistics on a device, where it absorbs tensors and scales them.

    Arrays, as evaluations have them, are scaled by a copy of the statistics.
    """

    def __init__(
        self,
        section: EnvSection,
        observation_space: gymnasium.Space[Any],
        num_envs: int,
        device: torch.device,
    ) -> None:
        super().__init__(section, observation_space, num_envs)
        self._seen_space, self._num_envs = observation_space, num_envs
        self._on_device = {
            path: _TensorMoments(one.mean.shape, device) for path, one in self._moments.items()
        }
        self._of_returns = _TensorMoments((), device)
        self._going = torch.zeros(num_envs, device=device, dtype=self._of_returns.mean.dtype)
        self._is_copied = True
        """Whether the arrays hold what the tensors hold."""

    def of_arrays(self) -> Normalization:
        """The same options for arrays, without statistics."""
        return Normalization(self._section, self._seen_space, self._num_envs)

    @property
    def scales(self) -> Mapping[Path, tuple[Any, Any]]:
        """Mean and factor of each normalised part of observations, by its path, as arrays."""
        self._copy()
        return super().scales

    def observations(self, observations: Any) -> Any:
        """Normalised observations, of any leading shape."""
        if self._moments and isinstance(first_leaf(observations), Tensor):
            return self._scaled_tensors(observations, ())
        self._copy()
        return super().observations(observations)

    def rewards(self, rewards: Any) -> Any:
        """Rewards divided by the standard deviation of returns, and clipped."""
        if not isinstance(rewards, Tensor):
            self._copy()
            return super().rewards(rewards)
        section = self._section
        if section.normalize_reward:
            scaled = rewards / (self._of_returns.variance + EPSILON).sqrt()
            rewards = _clipped(scaled.to(rewards.dtype), section.normalize_clip)
        return _clipped(rewards, section.reward_clip)

    def apply(self, columns: dict[str, Any]) -> None:
        """Normalise the columns of a batch in place."""
        for name in self._moments and self.observed:
            if name in columns:
                columns[name] = self.observations(columns[name])
        columns["rewards"] = self.rewards(columns["rewards"])

    def absorb(self, observations: Any, rewards: Any, ended: Any, stepped: Any = None) -> None:
        """Update the statistics with columns of shape (steps, num_envs, …).

        `stepped` is False where an environment only reset.
        """
        weights = None if stepped is None else stepped.reshape(-1)
        for path, moments in self._on_device.items():
            part = observations
            for key in path:
                part = part[key]
            moments.absorb(part.flatten(0, 1), weights)
        if self._section.normalize_reward:
            self._absorb_returns(rewards, ended, stepped)
        self._is_copied = False

    def get_state(self) -> dict[str, Any]:
        """The statistics."""
        self._copy()
        return super().get_state()

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state; running returns only for the same number of environments."""
        super().set_state(saved)
        for path, moments in self._on_device.items():
            moments.put(self._moments[path])
        self._of_returns.put(self._returns)
        self._going = torch.as_tensor(self._running).to(self._going)
        self._is_copied = True

    def forget_episodes(self) -> None:
        """Reset the running returns, after all environments were reset."""
        super().forget_episodes()
        self._going = torch.zeros_like(self._going)

    def _absorb_returns(self, rewards: Tensor, ended: Tensor, stepped: Tensor | None) -> None:
        gamma, going = self._section.normalize_gamma, self._going
        seen = []
        for time, earned in enumerate(rewards.unbind()):
            later = going * gamma + earned
            going = later if stepped is None else torch.where(stepped[time], later, going)
            seen.append(going)
            going = going * ~ended[time]
        self._going = going
        weights = None if stepped is None else stepped.reshape(-1)
        self._of_returns.absorb(torch.stack(seen).flatten(), weights)

    def _copy(self) -> None:
        """Copy the statistics into arrays; this waits for the device."""
        if self._is_copied:
            return
        for path, moments in self._on_device.items():
            moments.copy_to(self._moments[path])
        self._of_returns.copy_to(self._returns)
        self._running = self._going.double().numpy(force=True)
        self._is_copied = True
        self._update_scales()

    def _scaled_tensors(self, part: Any, path: Path) -> Any:
        if isinstance(part, Mapping):
            return {key: self._scaled_tensors(one, (*path, key)) for key, one in part.items()}
        if isinstance(part, tuple):
            return tuple(self._scaled_tensors(one, (*path, n)) for n, one in enumerate(part))
        moments = self._on_device.get(path)
        if moments is None:
            return part
        scaled = (part - moments.offset) * moments.factor
        return _clipped(scaled.float(), self._section.normalize_clip)


def _clipped(values: Tensor, bound: float) -> Tensor:
    return values.clamp(-bound, bound) if bound else values
