"""Normal distributions over the numbers of a Box."""

from __future__ import annotations

import math

import numpy
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.errors import UnsupportedSpaceError
from rlplug.nn.arrays import NumpyArray
from rlplug.nn.distributions.distribution import Constants
from rlplug.spaces import describe

__all__ = [
    "HALF_LOG_TAU",
    "Gaussian",
    "normal_entropy",
    "normal_kl",
    "normal_log_prob",
    "standard_normal",
]

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Gaussian:
    """Independent normal numbers, without bounds; `for_env` clips what the environment gets.

    The parameters are the means, then the logarithms of the standard deviations.
    """

    def __init__(self, space: spaces.Box) -> None:
        if not numpy.issubdtype(space.dtype, numpy.floating):
            raise UnsupportedSpaceError(
                f"no distribution over a Box of whole numbers: {describe(space)}.",
                "try: an environment whose actions are MultiDiscrete, or a Box of floats",
            )
        self._low, self._high = space.low, space.high
        self._constants = Constants(low=space.low, high=space.high)
        self._shape = space.shape
        self._dtype = space.dtype
        self.deviations = int(numpy.prod(space.shape))
        self.size = 2 * self.deviations

    def sample(
        self, parameters: NumpyArray, random: numpy.random.Generator, mask: NumpyArray | None = None
    ) -> NumpyArray:
        """One action for each row, shape (n, *shape), not clipped."""
        mean, std = parameters[:, : self.deviations], numpy.exp(parameters[:, self.deviations :])
        return self._actions(mean + std * random.standard_normal(mean.shape))

    def mode(self, parameters: NumpyArray, mask: NumpyArray | None = None) -> NumpyArray:
        """The mean of each row, not clipped."""
        return self._actions(parameters[:, : self.deviations])

    def tensor_sample(
        self, parameters: Tensor, generator: torch.Generator, mask: Tensor | None = None
    ) -> Tensor:
        """`sample` in torch."""
        mean, log_std = parameters.chunk(2, -1)
        drawn = mean + log_std.exp() * standard_normal(mean, generator)
        return drawn.reshape(-1, *self._shape)

    def tensor_mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mode` in torch, clipped to the bounds of the space."""
        mean = parameters[:, : self.deviations].reshape(-1, *self._shape)
        low, high = (self._constants.on(mean, name) for name in ("low", "high"))
        return mean.to(low.dtype).clamp(low, high)

    def for_env(self, actions: NumpyArray) -> NumpyArray:
        """The actions clipped to the bounds of the space."""
        return numpy.clip(actions, self._low, self._high)

    def log_prob(self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-density of each row's action, before clipping."""
        mean, log_std = parameters.chunk(2, -1)
        return normal_log_prob(mean, log_std, actions.reshape(actions.shape[0], -1)).sum(-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The entropy of each row."""
        return normal_entropy(parameters[:, self.deviations :])

    def score(
        self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`log_prob` and `entropy` at the price of one."""
        mean, log_std = parameters.chunk(2, -1)
        logs = normal_log_prob(mean, log_std, actions.reshape(actions.shape[0], -1)).sum(-1)
        return logs, normal_entropy(log_std)

    def kl(self, parameters: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
        """The divergence of each row from the same row of `others`."""
        return normal_kl(*parameters.chunk(2, -1), *others.chunk(2, -1))

    def rsample(
        self, parameters: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """One action for each row with its log-density; gradients flow through both."""
        mean, log_std = parameters.chunk(2, -1)
        drawn = mean + log_std.exp() * standard_normal(mean, generator)
        logs = normal_log_prob(mean, log_std, drawn).sum(-1)
        return drawn.reshape(-1, *self._shape), logs

    def _actions(self, flat: NumpyArray) -> NumpyArray:
        return flat.reshape(-1, *self._shape).astype(self._dtype)


def standard_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers of the shape, device and dtype of a tensor."""
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def normal_log_prob(mean: Tensor, log_std: Tensor, numbers: Tensor) -> Tensor:
    """The log-density of each number."""
    away = (numbers - mean) * torch.exp(-log_std)
    return -0.5 * away * away - log_std - HALF_LOG_TAU


def normal_entropy(log_std: Tensor) -> Tensor:
    """The entropy of independent normal numbers, summed over the last axis."""
    return log_std.sum(-1) + log_std.shape[-1] * (0.5 + HALF_LOG_TAU)


def normal_kl(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """The divergence between independent normal numbers, summed over the last axis."""
    away = (mean - other_mean) * torch.exp(-other_log_std)
    wider = log_std - other_log_std
    return (0.5 * (torch.exp(2 * wider) + away * away - 1) - wider).sum(-1)
