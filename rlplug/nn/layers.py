"""Hidden layers: a stack of linear layers with an activation after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from rlplug.errors import RequestError
from rlplug.nn.activations import make_activation
from rlplug.nn.arrays import ArrayForward, Views
from rlplug.nn.dense import dense, stack_of
from rlplug.nn.initial import orthogonal

__all__ = ["HiddenLayers", "MakeLinear", "check_widths"]

_MANY = 512
"""Rows from which one stack of layers alone is worth computing block by block."""


class MakeLinear(Protocol):
    """Makes a linear layer: `nn.Linear`, or one with noise."""

    def __call__(self, in_features: int, out_features: int) -> nn.Module: ...


class HiddenLayers(nn.Sequential):
    """Linear layers of the given widths, each with the activation; with no widths, the identity."""

    def __init__(
        self,
        in_features: int,
        net_arch: Sequence[int],
        activation: str = "tanh",
        *,
        ortho_init: bool = True,
        linear: MakeLinear = nn.Linear,
    ) -> None:
        complaint = check_widths(net_arch)
        if complaint is not None:
            raise RequestError(f"net_arch {complaint}.", "try: net_arch=[64, 64]")
        layers: list[nn.Module] = []
        width = in_features
        for wider in net_arch:
            layer = linear(in_features=width, out_features=wider)
            if ortho_init and isinstance(layer, nn.Linear):
                orthogonal(layer, "hidden")
            layers += [layer, make_activation(activation)]
            width = wider
        super().__init__(*layers)
        self.out_features = width

    def forward(self, features: Tensor) -> Tensor:
        """Shape (n, in_features) to (n, out_features)."""
        if len(features) >= _MANY and (stack := stack_of(self, features)) is not None:
            return dense([features], [stack])[0]
        out: Tensor = super().forward(features)  # type: ignore[no-untyped-call] # untyped in torch
        return out

    def array_forward(self, views: Views) -> ArrayForward:
        """The same on arrays."""
        return views.sequential(self)


def check_widths(net_arch: Sequence[int]) -> str | None:
    """What is wrong with widths of layers, or nothing."""
    if all(width >= 1 for width in net_arch):
        return None
    return f"must be a list of widths of at least 1, got {list(net_arch)}"
