"""Actions as a module chose them, made into what environments take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy
from gymnasium import spaces

__all__ = ["sent_to"]

Send: TypeAlias = Callable[[Any], Any]


def sent_to(space: spaces.Space[Any]) -> Send:
    """What environments are sent: real numbers within their bounds, all else as it is.

    What is stored stays what was chosen: only of that is the probability known.
    """
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return _within(space)
    if isinstance(space, spaces.Dict):
        senders = {name: sent_to(part) for name, part in space.spaces.items()}
        return lambda actions: {name: send(actions[name]) for name, send in senders.items()}
    if isinstance(space, spaces.Tuple):
        each = [sent_to(part) for part in space.spaces]
        return lambda actions: tuple(send(part) for send, part in zip(each, actions, strict=True))
    return _unchanged


def _within(space: spaces.Box) -> Send:
    low, high, dtype = space.low, space.high, space.dtype
    bounded = bool(numpy.isfinite(low).any() or numpy.isfinite(high).any())

    def send(actions: Any) -> Any:
        actions = numpy.asarray(actions, dtype)
        return numpy.minimum(numpy.maximum(actions, low), high) if bounded else actions

    return send


def _unchanged(actions: Any) -> Any:
    return actions
