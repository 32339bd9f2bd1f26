"""Encoders: from the observations of a space to one row of features each."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug.batch.nested import to_tensors
from rlplug.errors import RequestError, UnsupportedSpaceError, did_you_mean
from rlplug.nn.arrays import ArrayForward, NumpyArray, Views
from rlplug.nn.layers import orthogonal
from rlplug.spaces import AnySpace, Image, describe, image_of, placeholder, without_action_mask

__all__ = [
    "EmbeddingEncoder",
    "FlatEncoder",
    "ImageEncoder",
    "PartsEncoder",
    "load_encoder",
    "make_encoder",
    "no_encoder",
]

_WIDEST_EMBEDDING = 64

_LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Filters, size and stride of each convolution, as Mnih et al. (2015) had them for 84 × 84."""

_SMALL = ((16, 3, 1), (32, 3, 1))
"""The same for pictures on which the large ones leave nothing."""

_SMALLEST_LARGE = 36
_SMALLEST = 5


def make_encoder(space: AnySpace, *, ortho_init: bool = True) -> nn.Module:
    """The encoder for a space; the key `action_mask` of a Dict is left out."""
    encoder: nn.Module = _make(without_action_mask(space), "", ortho_init)
    return encoder


def no_encoder(space: AnySpace) -> str | None:
    """Why there is no encoder for a space; None if there is one."""
    try:
        # On the meta device nothing is computed, and no random number drawn.
        with torch.device("meta"):
            make_encoder(space, ortho_init=False)
    except UnsupportedSpaceError as error:
        return str(error)
    return None


def _make(space: AnySpace, where: str, ortho_init: bool) -> Any:
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
        self.out_features = sum(part.out_features for part in encoders)

    def forward(self, observations: Mapping[Any, Any] | tuple[Any, ...]) -> Tensor:
        """A mapping or tuple of parts with n rows each to (n, out_features)."""
        pairs = zip(self.keys, self.parts, strict=True)
        return torch.cat([part(observations[key]) for key, part in pairs], 1)

    def array_forward(self, views: Views) -> ArrayForward:
        """The same on arrays, if every part has it."""
        pairs = list(zip(self.keys, map(views.forward_of, self.parts), strict=True))

        def forward(observations: Any) -> NumpyArray:
            return numpy.concatenate([part(observations[key]) for key, part in pairs], 1)

        return forward


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
        layers: list[nn.Module] = []
        channels = image.channels
        for depth, size, stride in filters:
            layers += [nn.Conv2d(channels, depth, size, stride), nn.ReLU()]
            channels = depth
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
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


# -- encoders of one's own -------------------------------------------------------------------------


def load_encoder(path: str, space: AnySpace) -> nn.Module:
    """The encoder `module:Class` for a space, tried out on two observations."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise RequestError(
            f"encoder {path!r} cannot be imported: {type(error).__name__}: {error}",
            "try: encoder=module:Class, of a module in the folder where the run starts",
        ) from error
    if not hasattr(module, name):
        raise RequestError(
            f"encoder {path!r}: module {module_name!r} has no {name!r}.",
            did_you_mean(name, vars(module)) or "try: encoder=module:Class",
        )
    contract = "try: an nn.Module made from the observation space, that gives rows of out_features"
    try:
        encoder: nn.Module = getattr(module, name)(space)
        with torch.no_grad():
            shape = tuple(encoder.eval()(to_tensors(placeholder(space, _ROWS))).shape)
        encoder.train()
    except Exception as error:
        raise RequestError(
            f"encoder {path!r} fails for {describe(space)}: {type(error).__name__}: {error}",
            contract,
        ) from error
    width = getattr(encoder, "out_features", None)
    if shape != (_ROWS, width):
        raise RequestError(
            f"encoder {path!r} gave {shape} for {_ROWS} observations, and has out_features "
            f"{width!r}.",
            contract,
        )
    return encoder


_ROWS = 2
