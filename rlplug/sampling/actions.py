"""From what modules choose to what environments take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.errors import PluginError
from rlplug.spaces import AnySpace, whole_numbers

__all__ = ["action_clipper"]


def action_clipper(space: AnySpace, device: torch.device | None = None) -> Callable[[Any], Any]:
    """Clips continuous actions to the bounds of their space; the unclipped ones are stored.

    Their log-probabilities are those of the unclipped ones. Discrete ones must be whole numbers.
    With a `device`, actions are tensors on it.
    """
    if isinstance(space, spaces.Dict):
        parts = {name: action_clipper(part, device) for name, part in space.spaces.items()}
        return lambda actions: {name: clip(actions[name]) for name, clip in parts.items()}
    if isinstance(space, spaces.Tuple):
        each = [action_clipper(part, device) for part in space.spaces]
        return lambda actions: tuple(clip(part) for clip, part in zip(each, actions, strict=True))
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        bounded = bool(numpy.isfinite(space.low).any() or numpy.isfinite(space.high).any())
        if device is None:
            return partial(_clipped, low=space.low, high=space.high, bounded=bounded)
        low, high = (torch.as_tensor(bound, device=device) for bound in (space.low, space.high))
        return partial(_clipped_tensors, low=low, high=high, bounded=bounded)
    if device is not None:
        return _whole
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _discrete
    return lambda actions: actions


def _clipped(actions: Any, *, low: Any, high: Any, bounded: bool) -> Any:
    actions = numpy.asarray(actions, low.dtype)
    return numpy.minimum(numpy.maximum(actions, low), high) if bounded else actions


def _clipped_tensors(actions: Tensor, *, low: Tensor, high: Tensor, bounded: bool) -> Tensor:
    actions = actions.to(low.dtype)
    return actions.clamp(low, high) if bounded else actions


def _whole(actions: Tensor) -> Tensor:
    if actions.is_floating_point():
        raise PluginError(
            f"the module's actions are of {actions.dtype}, the action space has whole numbers.",
            "try: integers, for example the argmax of scores rather than the scores",
        )
    return actions


def _discrete(actions: Any) -> Any:
    if type(actions) is numpy.ndarray and actions.dtype.kind == "i":
        return actions
    return whole_numbers(actions, "the module's action")
