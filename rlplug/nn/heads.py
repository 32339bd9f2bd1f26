"""Heads: from features to a policy, or to the value of a state or of an action of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy
import torch
from torch import Tensor, nn

from rlplug.nn.arrays import ArrayForward, NumpyArray, Views
from rlplug.nn.distributions import Distribution
from rlplug.nn.layers import HiddenLayers, orthogonal

__all__ = ["ContinuousQHead", "PolicyHead", "ValueHead"]


class ContinuousQHead(nn.Module):
    """The value of an action made of numbers, given with the features."""

    def __init__(
        self,
        in_features: int,
        action_size: int,
        net_arch: Sequence[int] = (256, 256),
        activation: str = "relu",
        *,
        ortho_init: bool = False,
    ) -> None:
        super().__init__()
        hidden = HiddenLayers(
            in_features + action_size, net_arch, activation, ortho_init=ortho_init
        )
        self.layers = nn.Sequential(*hidden, nn.Linear(hidden.out_features, 1))

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        """The value of each row, shape (n,)."""
        together = torch.cat([features, actions.flatten(1).to(features.dtype)], 1)
        values: Tensor = self.layers(together)
        return values.squeeze(1)


class ValueHead(nn.Module):
    """The value of each state."""

    def __init__(self, in_features: int, *, ortho_init: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, 1)
        if ortho_init:
            orthogonal(self.linear, "value")

    def forward(self, features: Tensor) -> Tensor:
        """Shape (n, in_features) to (n,)."""
        values: Tensor = self.linear(features)
        return values.squeeze(1)


class PolicyHead(nn.Module):
    """The parameters of a distribution over actions.

    Standard deviations are learned numbers, the same in all states, unless
    `state_dependent_std` makes them outputs of the network.
    """

    def __init__(
        self,
        in_features: int,
        distribution: Distribution,
        *,
        state_dependent_std: bool = False,
        std_init: float = 1.0,
        ortho_init: bool = True,
    ) -> None:
        super().__init__()
        free = 0 if state_dependent_std else distribution.deviations
        self.linear = nn.Linear(in_features, distribution.size - free)
        if ortho_init:
            orthogonal(self.linear, "policy")
        self.log_std = nn.Parameter(torch.full((free,), math.log(std_init))) if free else None
        if state_dependent_std and distribution.deviations:
            with torch.no_grad():
                self.linear.bias[-distribution.deviations :] = math.log(std_init)

    def forward(self, features: Tensor) -> Tensor:
        """Shape (n, in_features) to (n, size of the distribution)."""
        return self.completed(self.linear(features))

    def completed(self, outputs: Tensor) -> Tensor:
        """The linear layer's outputs beside the deviations that are no outputs."""
        if self.log_std is None:
            return outputs
        return torch.cat([outputs, self.log_std + torch.zeros_like(outputs)], 1)

    def array_forward(self, views: Views) -> ArrayForward:
        """The same on arrays."""
        linear = views.part(self, "linear")
        if self.log_std is None:
            return linear
        log_std = views.of(self, "log_std")

        def forward(features: NumpyArray) -> NumpyArray:
            mean = linear(features)
            return numpy.concatenate([mean, numpy.broadcast_to(log_std, mean.shape)], 1)

        return forward
