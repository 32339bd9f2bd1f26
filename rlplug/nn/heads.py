"""Heads: from features to a policy, or to values of states and actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy
import torch
from torch import Tensor, nn

from rlplug.nn.arrays import ArrayForward, NumpyArray, Views
from rlplug.nn.distributions import Distribution
from rlplug.nn.layers import HiddenLayers, MakeLinear, orthogonal

__all__ = [
    "ContinuousQHead",
    "DistributionalHead",
    "PolicyHead",
    "QHead",
    "QuantileHead",
    "Streams",
    "ValueHead",
    "project",
]


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
        return torch.cat([outputs, self.log_std.expand_as(outputs)], 1)

    def array_forward(self, views: Views) -> ArrayForward:
        """The same on arrays."""
        linear = views.chain(self.linear)
        if self.log_std is None:
            return linear
        log_std = views.of(self, "log_std")

        def forward(features: NumpyArray) -> NumpyArray:
            mean = linear(features)
            return numpy.concatenate([mean, numpy.broadcast_to(log_std, mean.shape)], 1)

        return forward


# -- values of n actions: plain, as a distribution over returns, as quantiles ----------------------


@attrs.frozen(kw_only=True)
class Streams:
    """How the layers between features and action values are made."""

    dueling: bool = False
    """A value of the state, and what each action adds to it above the average."""
    net_arch: tuple[int, ...] = ()
    activation: str = "relu"
    ortho_init: bool = False
    linear: MakeLinear = nn.Linear
    """`NoisyLinear` explores by noise on its weights."""

    def make(self, in_features: int, outputs: int) -> nn.Sequential:
        """One stream."""
        hidden = HiddenLayers(
            in_features,
            self.net_arch,
            self.activation,
            ortho_init=self.ortho_init,
            linear=self.linear,
        )
        last = self.linear(in_features=hidden.out_features, out_features=outputs)
        if self.ortho_init and isinstance(last, nn.Linear):
            orthogonal(last, "action_value")
        return nn.Sequential(*hidden, last)


class QHead(nn.Module):
    """The values of n actions, shape (n, actions)."""

    atoms = 0
    """How many numbers describe the return of one action; 0: its mean alone."""

    def __init__(self, in_features: int, n_actions: int, streams: Streams | None = None) -> None:
        super().__init__()
        streams = streams or Streams()
        self.n_actions = n_actions
        self.dueling = streams.dueling
        self.advantage = streams.make(in_features, n_actions * max(self.atoms, 1))
        if self.dueling:
            self.value = streams.make(in_features, max(self.atoms, 1))

    def forward(self, features: Tensor) -> Tensor:
        """What the loss needs: shape (n, actions), with atoms (n, actions, atoms)."""
        outputs: Tensor = self.advantage(features)
        if self.atoms:
            outputs = outputs.reshape(-1, self.n_actions, self.atoms)
        if not self.dueling:
            return outputs
        value: Tensor = self.value(features)
        if self.atoms:
            value = value.unsqueeze(1)
        return value + outputs - outputs.mean(1, keepdim=True)

    def values(self, outputs: Tensor) -> Tensor:
        """The expected return of each action, shape (n, actions), of what `forward` gave."""
        return outputs

    def array_values(self, views: Views) -> ArrayForward:
        """`values` on arrays."""
        return lambda outputs: outputs[..., 0]

    def array_forward(self, views: Views) -> ArrayForward:
        """The expected returns on arrays: what acting needs."""
        advantage = views.chain(self.advantage)
        if not self.dueling and not self.atoms:
            return advantage
        value = views.chain(self.value) if self.dueling else None
        expected = self.array_values(views)
        shape = (-1, self.n_actions, max(self.atoms, 1))

        def forward(features: NumpyArray) -> Any:
            outputs: NumpyArray = advantage(features).reshape(shape)
            if value is not None:
                outputs = outputs - outputs.mean(1, keepdims=True)
                outputs += value(features)[:, None]
            return expected(outputs)

        return forward


class DistributionalHead(QHead):
    """The return of each action as logits over fixed atoms (C51)."""

    support: Tensor

    def __init__(
        self,
        in_features: int,
        n_actions: int,
        streams: Streams | None = None,
        *,
        atoms: int = 51,
        v_min: float = -10.0,
        v_max: float = 10.0,
    ) -> None:
        self.atoms = atoms
        super().__init__(in_features, n_actions, streams)
        self.register_buffer("support", torch.linspace(v_min, v_max, atoms))

    def values(self, outputs: Tensor) -> Tensor:
        """The mean return of each action."""
        return torch.softmax(outputs, -1) @ self.support

    def array_values(self, views: Views) -> ArrayForward:
        """`values` on arrays."""
        support = views.of(self, "support")

        def values(outputs: NumpyArray) -> NumpyArray:
            chances = numpy.exp(outputs - outputs.max(-1, keepdims=True))
            mean: NumpyArray = numpy.dot(chances, support) / chances.sum(-1)
            return mean

        return values


class QuantileHead(QHead):
    """The return of each action as evenly spread quantiles (QR)."""

    fractions: Tensor

    def __init__(
        self,
        in_features: int,
        n_actions: int,
        streams: Streams | None = None,
        *,
        atoms: int = 200,
    ) -> None:
        self.atoms = atoms
        super().__init__(in_features, n_actions, streams)
        self.register_buffer("fractions", (torch.arange(atoms) + 0.5) / atoms, persistent=False)

    def values(self, outputs: Tensor) -> Tensor:
        """The mean return of each action."""
        return outputs.mean(-1)

    def array_values(self, views: Views) -> ArrayForward:
        """`values` on arrays."""
        return lambda outputs: outputs.mean(-1)


def project(probabilities: Tensor, positions: Tensor, support: Tensor) -> Tensor:
    """Put probability mass that lies at any positions on the evenly spaced atoms of a support.

    Shapes (n, m), (n, m), (atoms,) to (n, atoms). Mass between two atoms goes to both, the more to
    the nearer; mass beyond an end goes to the end. All mass stays, and where nothing lies beyond
    an end the mean does (Bellemare et al. 2017, also where a position is an atom).
    """
    atoms = support.shape[0]
    spacing = (support[-1] - support[0]) / (atoms - 1)
    places = ((positions - support[0]) / spacing).clamp(0, atoms - 1)
    # The lower neighbour of the last atom is the one before it: so the upper one always exists,
    # and a position on an atom gives all to it instead of nothing to both.
    below = places.floor().clamp(max=atoms - 2)
    to_above = probabilities * (places - below)
    index = below.long()
    projected = probabilities.new_zeros(probabilities.shape[0], atoms)
    projected = projected.scatter_add(1, index, probabilities - to_above)
    return projected.scatter_add(1, index + 1, to_above)
