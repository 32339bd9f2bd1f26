"""Gymnasium spaces as plain values and arrays, and back: a policy needs no environment to act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from rlplug.errors import RequestError

__all__ = ["described", "restored"]

AnySpace = spaces.Space[Any]


def described(space: AnySpace) -> dict[str, Any]:
    """What makes the space again; a space of an unknown kind only says what it was."""
    kind = type(space)
    if kind is spaces.Box:
        low, high = getattr(space, "low"), getattr(space, "high")  # noqa: B009 # of any Box
        return {"kind": "Box", "low": low, "high": high, "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec, "start": space.start}
    if isinstance(space, spaces.MultiBinary):
        n = space.n if isinstance(space.n, int) else list(space.shape)
        return {"kind": "MultiBinary", "n": n}
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "parts": {key: described(one) for key, one in space.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "parts": [described(one) for one in space.spaces]}
    return {"kind": "unknown", "text": str(space)}


def restored(values: Mapping[str, Any]) -> AnySpace:
    """The space that was described."""
    kind = values["kind"]
    if kind == "Box":
        import numpy

        return spaces.Box(values["low"], values["high"], dtype=numpy.dtype(values["dtype"]).type)
    if kind == "Discrete":
        return spaces.Discrete(values["n"], start=values["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(values["nvec"], start=values["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(values["n"])
    if kind == "Dict":
        return spaces.Dict({key: restored(one) for key, one in values["parts"].items()})
    if kind == "Tuple":
        return spaces.Tuple([restored(one) for one in values["parts"]])
    raise RequestError(
        f"the checkpoint's space {values['text']} is of a kind that cannot be stored.",
        "try: an environment with spaces of Gymnasium itself",
    )
