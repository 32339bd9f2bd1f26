"""What an update reports: averages over minibatches, kept on the device until they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["Reduce", "Results", "average", "labelled", "mean_results"]

Results: TypeAlias = dict[str, dict[str, Any]]
"""Module id → metric → value."""

Reduce: TypeAlias = Callable[[Sequence[Mapping[str, Mapping[str, Any]]]], Results]
"""Makes one mapping of results of those of all minibatches."""


def mean_results(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> Results:
    """The mean of every metric of every module, over the minibatches that have it."""
    ids = dict.fromkeys(module_id for part in parts for module_id in part)
    return {
        module_id: average([part[module_id] for part in parts if module_id in part])
        for module_id in ids
    }


def average(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of every metric over the minibatches that have it."""
    if len(history) == 1:
        return dict(history[0])
    columns: dict[str, list[Any]] = {}
    for metrics in history:
        for name, value in metrics.items():
            columns.setdefault(name, []).append(value)
    return {name: _mean(values) for name, values in columns.items()}


def labelled(what: str, name: str) -> str:
    """`learning_rate`, or `learning_rate/actor` where the optimizer has a name."""
    return what if name == "default" else f"{what}/{name}"


def _mean(values: Sequence[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    if any(isinstance(value, Tensor) for value in values):
        stacked = torch.stack([torch.as_tensor(value) for value in values])
        return stacked.mean(dtype=None if stacked.is_floating_point() else torch.float32)
    return sum(values) / len(values)
