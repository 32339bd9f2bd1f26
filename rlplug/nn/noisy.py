"""Linear layers that explore by noise on their weights."""

from __future__ import annotations

import math

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlplug.nn.arrays import MLP, ArrayForward, NumpyArray, Views

__all__ = ["NoisyLinear", "resample_noise"]


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
