"""Encoders: from the observations of a space to one row of features each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug.errors import UnsupportedSpaceError
from rlplug.nn.arrays import ArrayForward, NumpyArray, Views
from rlplug.nn.images import ImageEncoder
from rlplug.spaces import AnySpace, describe, image_of, without_action_mask

__all__ = ["EmbeddingEncoder", "FlatEncoder", "PartsEncoder", "make_encoder", "no_encoder"]

_WIDEST_EMBEDDING = 64


def make_encoder(space: AnySpace, *, ortho_init: bool = True) -> nn.Module:
    """The encoder for a space; the key `action_mask` of a Dict is left out."""
    return _make(without_action_mask(space), "", ortho_init)


def no_encoder(space: AnySpace) -> str | None:
    """Why there is no encoder for a space; None if there is one."""
    try:
        # On the meta device nothing is computed, and no random number drawn.
        with torch.device("meta"):
            make_encoder(space, ortho_init=False)
    except UnsupportedSpaceError as error:
        return str(error)
    return None


def _make(space: AnySpace, where: str, ortho_init: bool) -> nn.Module:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return PartsEncoder(space, where, ortho_init)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return EmbeddingEncoder(space)
    image = image_of(space)
    if isinstance(space, spaces.Box) and image is not None:
        return ImageEncoder(space, image, where, ortho_init=ortho_init)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return FlatEncoder(space)
    raise UnsupportedSpaceError(
        f"no encoder for the observations{where}: {describe(space)}.",
        "try: encoder=module:Class with a network of your own,",
        "or an environment wrapper that turns it into a Box",
    )


class FlatEncoder(nn.Module):
    """Numbers as they are, in one row; bytes as fractions of 255."""

    scale: Tensor

    def __init__(self, space: spaces.Box | spaces.MultiBinary) -> None:
        super().__init__()
        self.out_features = math.prod(space.shape)
        self._bytes = isinstance(space, spaces.Box) and space.dtype == numpy.uint8
        # Also tells which device and dtype the network is on: there is no weight here.
        scale = torch.tensor(1 / 255 if self._bytes else 1.0)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, observations: Tensor) -> Tensor:
        """Shape (n, *shape) to (n, out_features)."""
        features = observations.reshape(-1, self.out_features).to(self.scale.dtype)
        return features * self.scale if self._bytes else features

    def array_forward(self, views: Views) -> ArrayForward:
        """The same on arrays."""
        scale = views.of(self, "scale")
        width, dtype, scaled = self.out_features, scale.dtype, self._bytes

        def forward(observations: NumpyArray) -> NumpyArray:
            # NumPy has one object for each of its formats; another one is no mistake, only slower.
            if observations.dtype is dtype and observations.ndim == 2:
                return observations
            features = observations.reshape(len(observations), width).astype(dtype)
            return features * scale if scaled else features

        return forward


class EmbeddingEncoder(nn.Module):
    """One learned row for each value of a Discrete, and of each part of a MultiDiscrete."""

    shift: Tensor

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        if isinstance(space, spaces.Discrete):
            counts, starts = [int(space.n)], [int(space.start)]
        else:
            counts = [int(n) for n in space.nvec.reshape(-1)]
            starts = [int(n) for n in space.start.reshape(-1)]
        width = min(max(counts), _WIDEST_EMBEDDING)
        self.out_features = width * len(counts)
        self.weight = nn.Parameter(torch.empty(sum(counts), width))
        # For a draw on the meta device, torch imports 800 modules first, which takes a second.
        if not self.weight.is_meta:
            # Rows of length about one, as standardised numbers would be.
            with torch.no_grad():
                self.weight.normal_().div_(math.sqrt(width))
        first = numpy.cumsum([0, *counts[:-1]]) - numpy.array(starts)
        self.register_buffer("shift", torch.from_numpy(first), persistent=False)

    def forward(self, observations: Tensor) -> Tensor:
        """Shape (n,) or (n, *shape) to (n, out_features)."""
        rows = observations.reshape(observations.shape[0], -1).long() + self.shift
        return self.weight[rows].flatten(1)

    def array_forward(self, views: Views) -> ArrayForward:
        """The same on arrays."""
        weight, width = views.of(self, "weight"), self.out_features
        shift = self.shift.cpu().numpy()

        def forward(observations: NumpyArray) -> NumpyArray:
            rows = observations.reshape(len(observations), -1) + shift
            taken: NumpyArray = weight.take(rows, axis=0)
            return taken.reshape(len(rows), width)

        return forward


class PartsEncoder(nn.Module):
    """An encoder for each part of a Dict or Tuple, their features side by side."""

    def __init__(
        self, space: spaces.Dict | spaces.Tuple[Any], where: str = "", ortho_init: bool = True
    ) -> None:
        super().__init__()
        keyed = isinstance(space, spaces.Dict)
        self.keys: list[Any] = list(space.spaces) if keyed else list(range(len(space.spaces)))
        word = "key" if keyed else "place"
        encoders = [
            _make(space[key], f"{where} at {word} {key!r}", ortho_init) for key in self.keys
        ]
        # Keys of a Dict may be words that no name of a submodule can be.
        self.parts = nn.ModuleList(encoders)
        self.out_features = sum(width_of(part) for part in encoders)

    def forward(self, observations: Mapping[Any, Any] | tuple[Any, ...]) -> Tensor:
        """A mapping or tuple of parts with n rows each to (n, out_features)."""
        pairs = zip(self.keys, self.parts, strict=True)
        return torch.cat([part(observations[key]) for key, part in pairs], 1)

    def array_forward(self, views: Views) -> ArrayForward:
        """The same on arrays, if every part has it."""
        forwards = [views.part(self.parts, str(index)) for index in range(len(self.parts))]
        pairs = list(zip(self.keys, forwards, strict=True))

        def forward(observations: Any) -> NumpyArray:
            return numpy.concatenate([part(observations[key]) for key, part in pairs], 1)

        return forward


def width_of(encoder: nn.Module) -> int:
    """How many features an encoder gives for each row."""
    width = encoder.out_features
    assert isinstance(width, int)
    return width
