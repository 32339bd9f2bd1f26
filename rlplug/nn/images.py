"""The encoder of images: convolutions, then one linear layer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug.errors import UnsupportedSpaceError
from rlplug.nn.layers import orthogonal
from rlplug.spaces import Image, describe

__all__ = ["ImageEncoder"]

_LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Filters, size and stride of each convolution, as Mnih et al. (2015) had them for 84 × 84."""

_SMALL = ((16, 3, 1), (32, 3, 1))
"""The same for pictures on which the large ones leave nothing."""

_SMALLEST_LARGE = 36
_SMALLEST = 5


class ImageEncoder(nn.Module):
    """Convolutions over an image in whatever order its axes lie, then one linear layer."""

    scale: Tensor

    def __init__(
        self,
        space: spaces.Box,
        image: Image,
        where: str = "",
        *,
        out_features: int = 512,
        ortho_init: bool = True,
    ) -> None:
        super().__init__()
        side = min(image.height, image.width)
        if side < _SMALLEST:
            raise UnsupportedSpaceError(
                f"the images{where} are too small for convolutions: {describe(space)}, "
                f"and a side needs {_SMALLEST} pixels.",
                "try: gymnasium.wrappers.FlattenObservation, or encoder=module:Class",
            )
        filters = _LARGE if side >= _SMALLEST_LARGE else _SMALL
        self.layout = image.layout
        self.convolutions = _convolutions(image.channels, filters)
        with torch.no_grad():
            pixels = torch.zeros(1, image.channels, image.height, image.width)
            width = self.convolutions(pixels).shape[1]
        self.linear = nn.Linear(width, out_features)
        self.out_features = out_features
        if ortho_init:
            orthogonal(self, "hidden")
        high = float(space.high.max()) if space.dtype == numpy.uint8 else 1.0
        self.register_buffer("scale", torch.tensor(1 / max(high, 1.0)), persistent=False)

    def forward(self, observations: Tensor) -> Tensor:
        """Shape (n, *shape) to (n, out_features)."""
        pixels = self._channels_first(observations).to(self.scale.dtype) * self.scale
        return torch.relu(self.linear(self.convolutions(pixels)))

    def _channels_first(self, observations: Tensor) -> Tensor:
        match self.layout:
            case "hw":
                return observations.unsqueeze(1)
            case "hwc":
                return observations.permute(0, 3, 1, 2)
            case "shwc":
                return observations.permute(0, 1, 4, 2, 3).flatten(1, 2)
        return observations


def _convolutions(channels: int, filters: tuple[tuple[int, int, int], ...]) -> nn.Sequential:
    layers: list[Any] = []
    depths = [channels, *(depth for depth, _, _ in filters)]
    for (before, after), (_, size, stride) in zip(pairwise(depths), filters, strict=True):
        layers += [nn.Conv2d(before, after, size, stride), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())
