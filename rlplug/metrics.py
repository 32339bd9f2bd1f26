"""Windows of metrics: means over the updates between two reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE

__all__ = ["MetricWindow"]

_MAX_WAITING = 1024


class MetricWindow:
    """Collects the results of updates; tensors stay on their device until they are averaged."""

    def __init__(self) -> None:
        self._waiting: list[Mapping[str, Mapping[str, Any]]] = []
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, results: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the results of one update: module id → metric → value."""
        self._waiting.append(results)
        if len(self._waiting) >= _MAX_WAITING:
            self._sum_waiting()

    def take(self) -> dict[str, float]:
        """Returns the means since the last call, named `train/<metric>`."""
        self._sum_waiting()
        names = list(self._sums)
        tensors = {name: value for name, value in self._sums.items() if isinstance(value, Tensor)}
        if tensors:
            moved = torch.stack([value.double() for value in tensors.values()]).tolist()
            self._sums.update(zip(tensors, moved, strict=True))
        means = {name: float(self._sums[name]) / self._counts[name] for name in names}
        self._sums.clear()
        self._counts.clear()
        return means

    def _sum_waiting(self) -> None:
        columns: dict[str, list[Any]] = {}
        for results in self._waiting:
            for module_id, metrics in results.items():
                # With one module, sums over all modules are redundant.
                if module_id == ALL_MODULES and len(results) == 2:
                    continue
                prefix = _PREFIXES.get(module_id, f"train/{module_id}/")
                for name, value in metrics.items():
                    columns.setdefault(prefix + name, []).append(value)
        self._waiting.clear()
        for name, values in columns.items():
            self._sums[name] = self._sums.get(name, 0.0) + _total(values)
            self._counts[name] = self._counts.get(name, 0) + len(values)


_PREFIXES = {DEFAULT_MODULE: "train/", ALL_MODULES: "train/all/"}


def _total(values: list[Any]) -> Any:
    tensors = [value.detach().reshape(()) for value in values if isinstance(value, Tensor)]
    numbers = sum(float(value) for value in values if not isinstance(value, Tensor))
    return torch.stack(tensors).sum() + numbers if tensors else numbers
