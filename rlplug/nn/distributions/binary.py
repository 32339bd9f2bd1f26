"""Distributions over several bits at once."""

from __future__ import annotations

import numpy
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from rlplug.nn.arrays import NumpyArray, sigmoid
from rlplug.nn.distributions.distribution import masked, masked_array

__all__ = ["Binary"]


class Binary:
    """Independent bits; the parameters are logits of 1, a bit that the mask forbids stays 0."""

    deviations = 0

    def __init__(self, space: spaces.MultiBinary) -> None:
        self._shape = space.shape
        self._dtype = space.dtype
        self.size = int(numpy.prod(space.shape))

    def sample(
        self, parameters: NumpyArray, random: numpy.random.Generator, mask: NumpyArray | None = None
    ) -> NumpyArray:
        """One action for each row, shape (n, *shape)."""
        chances = sigmoid(masked_array(parameters, mask))
        return self._actions(random.random(chances.shape) < chances)

    def mode(self, parameters: NumpyArray, mask: NumpyArray | None = None) -> NumpyArray:
        """The most likely action of each row: the bits that are more likely 1 than 0."""
        return self._actions(masked_array(parameters, mask) > 0)

    def tensor_sample(
        self, parameters: Tensor, generator: torch.Generator, mask: Tensor | None = None
    ) -> Tensor:
        """`sample` in torch."""
        chances = torch.sigmoid(masked(parameters, mask))
        bits = torch.rand(chances.shape, generator=generator, device=chances.device) < chances
        return bits.reshape(-1, *self._shape).to(torch.int8)

    def tensor_mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mode` in torch."""
        bits = masked(parameters, mask) > 0
        return bits.reshape(-1, *self._shape).to(torch.int8)

    def for_env(self, actions: NumpyArray) -> NumpyArray:
        """The actions themselves."""
        return actions

    def log_prob(self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-probability of each row's action: the sum over its bits."""
        logits = masked(parameters, mask)
        # A bit's share is -softplus(-logit) if it is 1 and -softplus(logit) if it is 0.
        signs = 1 - 2 * actions.reshape(actions.shape[0], -1).to(logits.dtype)
        return -functional.softplus(signs * logits).sum(-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The entropy of each row: the sum over its bits."""
        logits = masked(parameters, mask)
        return (functional.softplus(logits) - logits * torch.sigmoid(logits)).sum(-1)

    def score(
        self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`log_prob` and `entropy`."""
        return self.log_prob(parameters, actions, mask), self.entropy(parameters, mask)

    def kl(self, parameters: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
        """The divergence of each row from the same row of `others`."""
        logits, against = masked(parameters, mask), masked(others, mask)
        apart = torch.sigmoid(logits) * (logits - against)
        return (apart + functional.softplus(against) - functional.softplus(logits)).sum(-1)

    def _actions(self, bits: NumpyArray) -> NumpyArray:
        return bits.reshape(-1, *self._shape).astype(self._dtype)
