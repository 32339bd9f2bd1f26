"""How values of a space are kept: arrays in the smallest format that holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.batch.nested import leaves
from rlplug.errors import UnsupportedSpaceError

__all__ = ["bytes_of", "room_for", "widener"]


def room_for(
    space: spaces.Space[Any], rows: int, *, double: bool = False, frame_stack: int = 1
) -> Any:
    """Arrays of `rows` rows, nested like the space; of a stack only one frame is kept.

    Memory is taken by the system only where it is written to.
    """

    def room(leaf: spaces.Space[Any]) -> Any:
        shape = leaf.shape or ()
        return numpy.empty((rows, *shape[1 if frame_stack > 1 else 0 :]), _format(leaf, double))

    return _over(space, room)


def bytes_of(space: spaces.Space[Any], *, double: bool = False, frame_stack: int = 1) -> int:
    """What one row takes."""
    arrays = room_for(space, 1, double=double, frame_stack=frame_stack)
    return sum(leaf.nbytes for leaf in leaves(arrays))


def widener(space: spaces.Space[Any]) -> Callable[[Any], Any]:
    """Makes choices whole numbers that can be indices; numbers and pictures stay as they are."""
    if isinstance(space, spaces.Dict):
        parts = {name: widener(part) for name, part in space.spaces.items()}
        return lambda column: {name: widen(column[name]) for name, widen in parts.items()}
    if isinstance(space, spaces.Tuple):
        each = tuple(map(widener, space.spaces))
        return lambda column: tuple(widen(one) for widen, one in zip(each, column, strict=True))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _as_indices
    return _as_it_is


def _as_indices(column: Any) -> Any:
    return column.astype(numpy.int64)


def _as_it_is(column: Any) -> Any:
    return column


def _over(space: spaces.Space[Any], make: Callable[[spaces.Space[Any]], Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _over(part, make) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_over(part, make) for part in space.spaces)
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return make(space)
    raise UnsupportedSpaceError(
        f"a replay buffer keeps values of a fixed size, found {space}.",
        "try: a wrapper that gives Box, Discrete, MultiDiscrete or MultiBinary",
    )


def _format(space: spaces.Space[Any], double: bool) -> Any:
    if isinstance(space, spaces.Discrete):
        return numpy.result_type(
            numpy.min_scalar_type(int(space.start)),
            numpy.min_scalar_type(int(space.start + space.n - 1)),
        )
    if isinstance(space, spaces.MultiDiscrete):
        lowest, highest = int(space.start.min()), int((space.start + space.nvec - 1).max())
        return numpy.result_type(numpy.min_scalar_type(lowest), numpy.min_scalar_type(highest))
    if space.dtype == numpy.float64 and not double:
        return numpy.float32
    return space.dtype
