"""Normal distributions over the numbers of a Box, and those squashed into its bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from rlplug.errors import UnsupportedSpaceError
from rlplug.nn.arrays import Array, NumpyArray, accumulate, recorded, recording
from rlplug.nn.distributions.distribution import Constants, Distribution
from rlplug.spaces import describe

__all__ = ["Gaussian", "SquashedGaussian"]

_LOG_2 = math.log(2)
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_LOG_STD = (-20.0, 2.0)
"""Beyond these nothing changes: all squashed actions alike, or all at the bounds."""
_EDGE = 1 - 1e-6
"""How near to a bound an action is taken to lie: the bound itself has no finite density."""

_NODES, _WEIGHTS = numpy.polynomial.hermite_e.hermegauss(32)


class Gaussian(Distribution):
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
        drawn = mean + log_std.exp() * _standard_normal(mean, generator)
        return drawn.reshape(-1, *self._shape)

    def tensor_mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mode` in torch, clipped to the bounds of the space."""
        return self._clipped(parameters[:, : self.deviations])

    def for_env(self, actions: NumpyArray) -> NumpyArray:
        """The actions clipped to the bounds of the space."""
        return numpy.clip(actions, self._low, self._high)

    def log_prob(self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-density of each row's action, before clipping."""
        mean, log_std = parameters.chunk(2, -1)
        return _log_density(mean, log_std, actions.reshape(actions.shape[0], -1)).sum(-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The entropy of each row."""
        return _normal_entropy(parameters[:, self.deviations :])

    def score(
        self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`log_prob` and `entropy` at the price of one."""
        mean, log_std = parameters.chunk(2, -1)
        logs = _log_density(mean, log_std, actions.reshape(actions.shape[0], -1)).sum(-1)
        return logs, _normal_entropy(log_std)

    def kl(self, parameters: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
        """The divergence of each row from the same row of `others`."""
        return _normal_kl(*parameters.chunk(2, -1), *others.chunk(2, -1))

    def rsample(
        self, parameters: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """One action for each row with its log-density; gradients flow through both."""
        mean, log_std = parameters.chunk(2, -1)
        drawn = mean + log_std.exp() * _standard_normal(mean, generator)
        return drawn.reshape(-1, *self._shape), _log_density(mean, log_std, drawn).sum(-1)

    def _clipped(self, flat: Tensor) -> Tensor:
        low, high = (self._constants.on(flat, name) for name in ("low", "high"))
        return flat.reshape(-1, *self._shape).to(low.dtype).clamp(low, high)

    def _actions(self, flat: NumpyArray) -> NumpyArray:
        return flat.reshape(-1, *self._shape).astype(self._dtype)


class SquashedGaussian(Gaussian):
    """Independent numbers: normal ones, through tanh, stretched over the bounds of a Box.

    Takes the parameters of `Gaussian`, with deviations held between e⁻²⁰ and e². The entropy has
    no closed form: it is integrated.
    """

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        if not space.is_bounded():
            raise UnsupportedSpaceError(
                f"actions cannot be squashed into a space without bounds: {describe(space)}.",
                "try: the option that leaves actions unsquashed, or "
                "gymnasium.wrappers.RescaleAction",
            )
        low, high = (bound.reshape(-1).astype(float) for bound in (space.low, space.high))
        self._scale, self._middle = (high - low) / 2, (high + low) / 2
        self._constants = Constants(
            low=space.low,
            high=space.high,
            scale=self._scale,
            middle=self._middle,
            nodes=_NODES,
            weights=_WEIGHTS,
        )
        self._log_scale = float(numpy.log(self._scale).sum())
        self._is_unit = bool((self._scale == 1).all() and (self._middle == 0).all())

    def sample(
        self, parameters: NumpyArray, random: numpy.random.Generator, mask: NumpyArray | None = None
    ) -> NumpyArray:
        """One action for each row, shape (n, *shape), within the bounds."""
        mean, log_std = parameters[:, : self.deviations], parameters[:, self.deviations :]
        limited = numpy.concatenate([mean, numpy.clip(log_std, *_LOG_STD)], 1)
        return self._squash(super().sample(limited, random))

    def mode(self, parameters: NumpyArray, mask: NumpyArray | None = None) -> NumpyArray:
        """The squashed mean of each row: the median of its actions."""
        return self._squash(super().mode(parameters))

    def tensor_sample(
        self, parameters: Tensor, generator: torch.Generator, mask: Tensor | None = None
    ) -> Tensor:
        """`sample` in torch."""
        return self.rsample(parameters, generator)[0]

    def tensor_mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mode` in torch."""
        scale, middle = (self._constants.on(parameters, name) for name in ("scale", "middle"))
        return self._clipped(middle + scale * torch.tanh(parameters[:, : self.deviations]))

    def log_prob(self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-density of each row's action."""
        scale, middle = self._stretch(parameters)
        flat = actions.reshape(actions.shape[0], -1).to(parameters.dtype)
        numbers = torch.atanh(((flat - middle) / scale).clamp(-_EDGE, _EDGE))
        logs = _log_density(*_limited(parameters), numbers) - _log_slope(numbers)
        return logs.sum(-1) - self._log_scale

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The entropy of each row, by Gauss-Hermite quadrature with 32 nodes."""
        mean, log_std = _limited(parameters)
        nodes, weights = (
            self._constants.on(mean, name, mean.dtype) for name in ("nodes", "weights")
        )
        numbers = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * nodes
        stretched = (_log_slope(numbers) * weights).sum(-1) / math.sqrt(2 * math.pi)
        return _normal_entropy(log_std) + stretched.sum(-1) + self._log_scale

    def score(
        self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`log_prob` and `entropy`."""
        return self.log_prob(parameters, actions), self.entropy(parameters)

    def kl(self, parameters: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
        """The divergence of each row from the same row of `others`, squashed or not."""
        return _normal_kl(*_limited(parameters), *_limited(others))

    def rsample(
        self,
        parameters: Tensor,
        generator: torch.Generator | None = None,
        *,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One action for each row with its log-density; gradients flow through both.

        The standard normal numbers that it is made of are drawn from the generator, or given as
        `noise` of shape (n, deviations).
        """
        if noise is None:
            noise = _standard_normal(parameters[:, : self.deviations], generator)
        given: Any = parameters
        numbers: Any = noise
        if type(given) is Array:
            numbers = numbers.value if type(numbers) is Array else numbers.numpy()
            inner, logs = _array_draw(given, numbers)
        else:
            mean, log_std = _limited(parameters)
            drawn = mean + log_std.exp() * noise
            normal = -0.5 * noise * noise - log_std - _HALF_LOG_TAU
            inner, logs = torch.tanh(drawn), (normal - _log_slope(drawn)).sum(-1)
        if not self._is_unit:
            scale, middle = self._stretch(parameters)
            inner, logs = middle + scale * inner, logs - self._log_scale
        return inner.reshape(-1, *self._shape), logs

    def _stretch(self, like: Tensor) -> tuple[Tensor, Tensor]:
        constants = self._constants
        return constants.on(like, "scale", like.dtype), constants.on(like, "middle", like.dtype)

    def _squash(self, numbers: NumpyArray) -> NumpyArray:
        scale, middle = self._scale.reshape(self._shape), self._middle.reshape(self._shape)
        return self.for_env((middle + scale * numpy.tanh(numbers)).astype(self._dtype))


def _array_draw(parameters: Array, noise: NumpyArray) -> tuple[Any, Any]:
    """tanh(mean + deviation · noise), shape (n, k), and its log-densities (n,), in two nodes.

    Twenty operations one by one would give the same.
    """
    tape = parameters.tape
    turned, along = parameters.value.T, noise.T
    k = len(turned) // 2
    raw = turned[k:]
    log_std = raw.clip(*_LOG_STD)
    moved = numpy.exp(log_std) * along
    drawn = turned[:k] + moved
    actions = numpy.tanh(drawn)
    far = numpy.abs(drawn)
    # Minus the logarithm of the slope of tanh, without cancellation far from 0.
    flat = 2 * (far + numpy.log1p(numpy.exp(-2 * far)) - _LOG_2)
    logs = numpy.add.reduce(flat - 0.5 * along * along - log_std)
    logs -= k * _HALF_LOG_TAU
    if not recording(parameters):
        return Array(actions.T, tape), Array(logs, tape)
    inside = log_std == raw

    def back(below: Any, direct: Any) -> None:
        grad = numpy.empty_like(turned)
        grad[:k] = below
        numpy.multiply(below, moved, out=grad[k:])
        grad[k:] -= direct
        grad[k:] *= inside
        accumulate(parameters, grad.T)

    return (
        recorded(actions.T, tape, lambda g: back(g.T * (1 - actions * actions), 0)),
        recorded(logs, tape, lambda g: back(2 * actions * g, g)),
    )


def _standard_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def _limited(parameters: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = parameters.chunk(2, -1)
    return mean, log_std.clamp(*_LOG_STD)


def _log_slope(numbers: Tensor) -> Tensor:
    """The logarithm of the slope of tanh, without cancellation far from 0."""
    return 2 * (_LOG_2 - numbers - functional.softplus(-2 * numbers))


def _log_density(mean: Tensor, log_std: Tensor, numbers: Tensor) -> Tensor:
    away = (numbers - mean) * torch.exp(-log_std)
    return -0.5 * away * away - log_std - _HALF_LOG_TAU


def _normal_entropy(log_std: Tensor) -> Tensor:
    """The entropy of independent normal numbers, summed over the last axis."""
    return log_std.sum(-1) + log_std.shape[-1] * (0.5 + _HALF_LOG_TAU)


def _normal_kl(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """The divergence between independent normal numbers, summed over the last axis."""
    away = (mean - other_mean) * torch.exp(-other_log_std)
    wider = log_std - other_log_std
    return (0.5 * (torch.exp(2 * wider) + away * away - 1) - wider).sum(-1)
