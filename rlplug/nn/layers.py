"""Layers: hidden ones with an activation after each, and linear ones that explore by noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlplug.errors import RequestError
from rlplug.nn.arrays import MLP, ArrayForward, NumpyArray, Views

__all__ = [
    "ACTIVATIONS",
    "GAINS",
    "HiddenLayers",
    "MakeLinear",
    "NoisyLinear",
    "check_widths",
    "device_of",
    "evaluating",
    "orthogonal",
    "resample_noise",
]

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


def check_widths(net_arch: Sequence[int]) -> str | None:
    """What is wrong with widths of layers, or nothing."""
    if all(width >= 1 for width in net_arch):
        return None
    return f"must be a list of widths of at least 1, got {list(net_arch)}"


class NoisyLinear(nn.Module):
    """A linear layer with learned, factorised Gaussian noise (Fortunato et al. 2018).

    The noise stays as it is until `resample`; in eval mode there is none.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, in_features: int, out_features: int, sigma: float = 0.5) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        bound = 1 / math.sqrt(in_features)
        spread = sigma * bound
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((out_features, in_features), spread))
        self.bias_sigma = nn.Parameter(torch.full((out_features,), spread))
        self.register_buffer("noise_in", torch.zeros(in_features))
        self.register_buffer("noise_out", torch.zeros(out_features))
        self.resample(numpy.random.default_rng(int(torch.randint(2**62, ()))))

    def forward(self, features: Tensor) -> Tensor:
        """Shape (n, in_features) to (n, out_features)."""
        mean = functional.linear(features, self.weight, self.bias)
        if not self.training:
            return mean
        # The outer product of the two noises never has to be made.
        spread = functional.linear(features * self.noise_in, self.weight_sigma, self.bias_sigma)
        return mean + spread * self.noise_out

    def resample(self, random: numpy.random.Generator | torch.Generator) -> None:
        """Draw new noise."""
        for noise in (self.noise_in, self.noise_out):
            if isinstance(random, torch.Generator):
                normal = torch.randn(noise.shape, generator=random, device=noise.device)
                noise.copy_(normal.sign() * normal.abs().sqrt())
                continue
            drawn = random.standard_normal(noise.shape[0], numpy.float32)
            noise.copy_(torch.from_numpy(numpy.sign(drawn) * numpy.sqrt(numpy.abs(drawn))))

    def array_forward(self, views: Views) -> ArrayForward:
        """The same on arrays."""
        mean = MLP([views.layer(self)])
        if not views.noisy:
            return mean
        sigma = MLP([views.layer(self, weight="weight_sigma", bias="bias_sigma")])
        noise_in, noise_out = views.of(self, "noise_in"), views.of(self, "noise_out")

        def forward(features: NumpyArray) -> NumpyArray:
            spread: NumpyArray = sigma(features * noise_in)
            spread *= noise_out
            spread += mean(features)
            return spread

        return forward


def resample_noise(module: nn.Module, random: numpy.random.Generator | torch.Generator) -> None:
    """Draw new noise in all noisy layers of a module."""
    for part in module.modules():
        if isinstance(part, NoisyLinear):
            part.resample(random)


@contextmanager
def evaluating(module: nn.Module, *, noisy: bool = False) -> Iterator[None]:
    """Every part in eval mode, but for noise that is wanted; then each in the mode it had."""
    parts = list(module.modules())
    modes = [part.training for part in parts]
    for part in parts:
        # Past nn.Module's slow assignment, which would be most of the time here.
        vars(part)["training"] = noisy and isinstance(part, NoisyLinear)
    try:
        yield
    finally:
        for part, training in zip(parts, modes, strict=True):
            vars(part)["training"] = training


def device_of(module: nn.Module) -> torch.device:
    """Where a module is; one without parameters is on the CPU."""
    for parameter in module.parameters():
        return parameter.device
    return torch.device("cpu")
