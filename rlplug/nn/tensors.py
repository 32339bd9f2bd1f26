"""Observations as tensors and as arrays, nested as their space is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

__all__ = ["device_of", "rows_of", "to_arrays", "to_tensors"]


def to_tensors(observations: Any, device: torch.device) -> Any:
    """Arrays and tensors, maybe nested, as tensors on a device; nothing is copied needlessly."""
    if isinstance(observations, Mapping):
        return {key: to_tensors(part, device) for key, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(to_tensors(part, device) for part in observations)
    return torch.as_tensor(observations, device=device)


def to_arrays(observations: Any) -> Any:
    """Tensors and arrays, maybe nested, as arrays."""
    if isinstance(observations, numpy.ndarray):
        return observations
    if isinstance(observations, Mapping):
        return {key: to_arrays(part) for key, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(to_arrays(part) for part in observations)
    if isinstance(observations, Tensor):
        return observations.detach().cpu().numpy()
    return numpy.asarray(observations)


def device_of(module: nn.Module) -> torch.device:
    """Where a module is; one without parameters is on the CPU."""
    for parameter in module.parameters():
        return parameter.device
    return torch.device("cpu")


def rows_of(observations: Any) -> int:
    """How many observations there are."""
    if isinstance(observations, numpy.ndarray):
        return len(observations)
    while isinstance(observations, Mapping | tuple):
        parts = observations.values() if isinstance(observations, Mapping) else observations
        observations = next(iter(parts))
    return len(observations)
