"""Spaces as JSON, both ways: recordings carry those of their environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.errors import UnsupportedSpaceError
from rlplug.spaces import describe

__all__ = ["space_from_json", "space_to_json"]


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space as values that JSON has; bounds that are the same everywhere as one number."""
    if isinstance(space, spaces.Box):
        return {
            "kind": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bounds(space.low),
            "high": _bounds(space.high),
        }
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "parts": {key: space_to_json(one) for key, one in space.items()}}
    raise UnsupportedSpaceError(
        f"{describe(space)} cannot be recorded.",
        "recorded are: Box, Discrete, and the Dict of bandits",
    )


def space_from_json(told: Mapping[str, Any]) -> spaces.Space[Any]:
    """The space that `space_to_json` was given."""
    kind = told["kind"]
    if kind == "Discrete":
        return spaces.Discrete(told["n"], start=told["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(told["n"])
    if kind == "Dict":
        return spaces.Dict({key: space_from_json(one) for key, one in told["parts"].items()})
    shape, dtype = tuple(told["shape"]), numpy.dtype(told["dtype"])
    low, high = (
        numpy.broadcast_to(numpy.asarray(told[side], dtype=float), shape).astype(dtype)
        for side in ("low", "high")
    )
    return spaces.Box(low, high, shape, dtype.type)


def _bounds(values: Any) -> Any:
    # JSON of Python has Infinity.
    if values.size and (values == values.flat[0]).all():
        return float(values.flat[0])
    return values.astype(float).tolist()
