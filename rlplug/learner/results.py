"""What an update reports: metrics by module, reduced over minibatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy
import torch

from rlplug.learner.step import average

__all__ = ["Reduce", "Results", "as_tensors", "mean_results", "reduced"]

Results: TypeAlias = dict[str, dict[str, Any]]
"""Module id → metric → value."""

Reduce: TypeAlias = Callable[[Sequence[Mapping[str, Mapping[str, Any]]]], Results]
"""Reduces the results of all minibatches to one mapping."""


def mean_results(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> Results:
    """The mean of every metric of every module, over the minibatches that have it."""
    ids = dict.fromkeys(module_id for part in parts for module_id in part)
    return {
        module_id: average([part[module_id] for part in parts if module_id in part])
        for module_id in ids
    }


def reduced(
    whole: Results, histories: Mapping[str, Sequence[dict[str, Any]]], reduce_fn: Reduce | None
) -> Results | list[Results]:
    """The results of all minibatches as `reduce_fn` reduces them, and what only `whole` has.

    `histories` are the metrics of each module's minibatches; without `reduce_fn` they are given
    back, minibatch by minibatch.
    """
    longest = max(map(len, histories.values()), default=0)
    parts: list[Results] = [
        {
            module_id: history[index]
            for module_id, history in histories.items()
            if index < len(history)
        }
        for index in range(longest)
    ]
    if reduce_fn is None:
        return parts
    results = {module_id: dict(metrics) for module_id, metrics in reduce_fn(parts).items()}
    for module_id, metrics in whole.items():
        seen = {name for part in parts for name in part.get(module_id, ())}
        added = {name: value for name, value in metrics.items() if name not in seen}
        results[module_id] = {**added, **results.get(module_id, {})}
    return results


def as_tensors(metrics: dict[str, Any]) -> dict[str, Any]:
    """NumPy scalars as tensors, which is what hooks expect."""
    numbers = {name: one for name, one in metrics.items() if isinstance(one, numpy.generic)}
    if numbers:
        tensors = torch.from_numpy(numpy.array(list(numbers.values()))).unbind()
        metrics.update(zip(numbers, tensors, strict=True))
    return metrics
