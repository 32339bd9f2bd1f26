"""Hidden layers: a stack of linear layers with an activation after each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from rlplug.errors import RequestError
from rlplug.nn.arrays import ArrayForward, Views

__all__ = ["ACTIVATIONS", "GAINS", "HiddenLayers", "MakeLinear", "check_widths", "orthogonal"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
}

GAINS: dict[str, float] = {
    "hidden": math.sqrt(2),
    "memory": 1.0,
    "policy": 0.01,
    "value": 1.0,
    "action_value": 1.0,
}
"""The gain of each kind of layer; a small one for policies makes all first actions alike."""


@torch.no_grad()
def orthogonal(module: nn.Module, kind: str) -> nn.Module:
    """Give every matrix in a module orthogonal weights with the gain of its kind, zero biases."""
    for name, parameter in module.named_parameters():
        leaf = name.rpartition(".")[2]
        if leaf.startswith("bias"):
            parameter.zero_()
        elif leaf.startswith("weight") and parameter.ndim >= 2:
            nn.init.orthogonal_(parameter, GAINS[kind])
    return module


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
            layers += [layer, ACTIVATIONS[activation]()]
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
