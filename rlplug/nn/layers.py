"""Hidden layers: a stack of linear layers with an activation after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn

from rlplug.errors import RequestError
from rlplug.nn.activations import make_activation
from rlplug.nn.arrays import ArrayForward, Views
from rlplug.nn.initial import orthogonal

__all__ = ["HiddenLayers", "MakeLinear", "check_widths"]


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

    def array_forward(self, views: Views) -> ArrayForward:
        """The same on arrays."""
        return views.sequential(self)


def check_widths(net_arch: Sequence[int]) -> str | None:
    """What is wrong with widths of layers, or nothing."""
    if all(width >= 1 for width in net_arch):
        return None
    return f"must be a list of widths of at least 1, got {list(net_arch)}"
