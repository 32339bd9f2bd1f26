"""Row writers: put the observation of one environment into batched arrays, part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy
from gymnasium import spaces

from rlplug.spaces import AnySpace, shape_mismatch

__all__ = ["RowWriter", "has_fixed_shapes", "row_writer"]

RowWriter: TypeAlias = Callable[[Any, int, Any], None]
"""Given batched arrays, the index of an environment, and its observation."""


def row_writer(space: AnySpace, where: str = "") -> RowWriter:
    """The writer for a space; it refuses observations of another shape.

    Made once: steps do not look into the space again.
    """
    if isinstance(space, spaces.Dict):
        named = [(key, row_writer(part, f"{where}with {key!r} ")) for key, part in space.items()]

        def write_dict(arrays: Any, index: int, observation: Any) -> None:
            for key, write in named:
                write(arrays[key], index, observation[key])

        return write_dict
    if isinstance(space, spaces.Tuple):
        writers = [
            row_writer(part, f"{where}with part {place} ")
            for place, part in enumerate(space.spaces)
        ]

        def write_tuple(arrays: Any, index: int, observation: Any) -> None:
            for write, array, part in zip(writers, arrays, observation, strict=True):
                write(array, index, part)

        return write_tuple
    if isinstance(space, spaces.Box) and (space.dtype.kind == "f" or not where):
        return _box_writer(space, where)
    return _integer_writer(space, where)


def has_fixed_shapes(space: AnySpace) -> bool:
    """Whether batched observations are arrays, or Dicts and Tuples of arrays."""
    if isinstance(space, spaces.Dict):
        return all(map(has_fixed_shapes, space.values()))
    if isinstance(space, spaces.Tuple):
        return all(map(has_fixed_shapes, space.spaces))
    arrays = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    return isinstance(space, arrays)


def _box_writer(space: spaces.Box, where: str) -> RowWriter:
    shape = space.shape

    def write_box(array: Any, index: int, observation: Any) -> None:
        if getattr(observation, "shape", ()) != shape:
            _refuse_other_shape(space, where, observation)
        array[index] = observation

    return write_box


def _integer_writer(space: AnySpace, where: str) -> RowWriter:
    shape, dtype = space.shape, numpy.dtype(space.dtype)
    kinds = (numpy.ndarray,) if shape else (int, dtype.type)

    def write_integers(array: Any, index: int, observation: Any) -> None:
        if type(observation) in kinds and (
            not shape or (observation.dtype is dtype and observation.shape == shape)
        ):
            array[index] = observation
            return
        _refuse_other_shape(space, where, observation)
        # An assignment would truncate fractions.
        numpy.copyto(array[index, ...], observation, casting="same_kind")

    return write_integers


def _refuse_other_shape(space: AnySpace, where: str, observation: Any) -> None:
    mismatch = shape_mismatch(space, observation)
    if mismatch:
        raise ValueError(f"it gave an observation {where}{mismatch}")
