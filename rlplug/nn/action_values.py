"""Heads that value each of n actions: plain, as a distribution over returns, as quantiles."""

from __future__ import annotations

from typing import Any

import attrs
import numpy
import torch
from torch import Tensor, nn

from rlplug.nn.arrays import ArrayForward, NumpyArray, Views
from rlplug.nn.layers import HiddenLayers, MakeLinear, orthogonal

__all__ = ["DistributionalHead", "QHead", "QuantileHead", "Streams"]


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
        advantage = views.part(self, "advantage")
        if not self.dueling and not self.atoms:
            return advantage
        value = views.part(self, "value") if self.dueling else None
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
