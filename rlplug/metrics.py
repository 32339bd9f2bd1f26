"""Windows of metrics: means over the updates between two reports."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE

TIME_PARTS = ("step", "act", "prepare", "learn", "track", "evaluate")
"""What the time of a run goes into: environment steps, choosing actions and storing experience,
batches, updates, events with reports and checkpoints, and evaluations with their videos."""

_MAX_WAITING = 1024


class MetricWindow:
    """Collects the results of updates; tensors stay on their device until they are averaged."""

    def __init__(self) -> None:
        self._waiting: list[Mapping[str, Mapping[str, Any]]] = []
        self._restored: tuple[int, dict[str, list[Any]]] = (0, {})
        """Results that a restored state waited with: their number and their values by name."""
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, results: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the results of one update: module id → metric → value."""
        self._waiting.append(results)
        if len(self._waiting) + self._restored[0] >= _MAX_WAITING:
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

    def get_state(self) -> dict[str, Any]:
        """All results since the last report; they are not summed, which would round differently."""
        columns = self._columns()
        return {
            "count": len(self._waiting) + self._restored[0],
            "tensors": {
                name: torch.stack(of) for name, one in columns.items() if (of := _tensors(one))
            },
            "numbers": {name: _numbers(one) for name, one in columns.items()},
            "sums": {
                name: one.detach().clone() if isinstance(one, Tensor) else one
                for name, one in self._sums.items()
            },
            "counts": dict(self._counts),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        stacked = saved["tensors"]
        columns = {
            name: [*(stacked[name].unbind() if name in stacked else ()), *numbers]
            for name, numbers in saved["numbers"].items()
        }
        self._restored = (saved["count"], columns)
        self._waiting.clear()
        self._sums, self._counts = dict(saved["sums"]), dict(saved["counts"])

    def _sum_waiting(self) -> None:
        columns = self._columns()
        self._waiting.clear()
        self._restored = (0, {})
        for name, values in columns.items():
            self._sums[name] = self._sums.get(name, 0.0) + _total(values)
            self._counts[name] = self._counts.get(name, 0) + len(values)

    def _columns(self) -> dict[str, list[Any]]:
        """The values that wait to be summed, by name."""
        columns = {name: list(values) for name, values in self._restored[1].items()}
        # One after the other, nearly all updates have the same metrics.
        for (module_ids, *names), alike in groupby(self._waiting, _outline):
            updates = list(alike)
            for module_id, own in zip(module_ids, names, strict=True):
                prefix = _PREFIXES.get(module_id, f"train/{module_id}/")
                rows = [*map(itemgetter(module_id), updates)]
                for name in own:
                    if module_id != ALL_MODULES or len(names) != 2 or name not in _SUMS:
                        columns.setdefault(prefix + name, []).extend(map(itemgetter(name), rows))
        return columns


class TimeSplit:
    """Seconds of a run by what they were spent on: sums that the trainer adds to, and their parts.

    The sums are few, for the trainer adds to them in every step of a stream.
    """

    __slots__ = ("_before", "_reported", "collect", "events", "feed", "update")

    def __init__(self) -> None:
        self.collect = 0.0
        """Collections: steps of the environments, and acting."""
        self.feed = 0.0
        """From the end of a collection to that of its last update: updates and events, too."""
        self.update = 0.0
        """Updates of the learner, with the batches that it prepares."""
        self.events = 0.0
        """Events inside of `feed`."""
        self._before = dict.fromkeys(TIME_PARTS, 0.0)
        """What was spent otherwise, or before the run was resumed."""
        self._reported = dict.fromkeys(TIME_PARTS, 0.0)

    def add(self, part: str, seconds: float) -> None:
        """Add to a part what is in none of the sums."""
        self._before[part] += seconds

    def total(self, step: float, prepare: float) -> dict[str, float]:
        """The seconds of each part; `step` of them in environments, `prepare` in batches."""
        parts = {
            "step": step,
            "act": self.collect - step,
            "prepare": self.feed - self.update - self.events + prepare,
            "learn": self.update - prepare,
            "track": self.events,
            "evaluate": 0.0,
        }
        return {part: seconds + self._before[part] for part, seconds in parts.items()}

    def take(self, step: float, prepare: float) -> dict[str, float]:
        """Seconds of each part since the last call, as metrics."""
        now = self.total(step, prepare)
        since = {part: seconds - self._reported[part] for part, seconds in now.items()}
        self._reported = now
        return {f"time/{part}_seconds": one for part, one in since.items()}

    def get_state(self, step: float, prepare: float) -> dict[str, Any]:
        """What was spent and what of it was reported."""
        return {"total": self.total(step, prepare), "reported": dict(self._reported)}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Go on, in another process, from a state."""
        self._before = {part: float(saved["total"][part]) for part in TIME_PARTS}
        self._reported = {part: float(saved["reported"][part]) for part in TIME_PARTS}


_PLAIN = frozenset((float, int))
_PREFIXES = {DEFAULT_MODULE: "train/", ALL_MODULES: "train/all/"}
_SUMS = frozenset({"loss", "steps_trained", "updates"})
"""What the learner reports under ALL_MODULES: of one module it says nothing new."""


def _outline(results: Mapping[str, Mapping[str, Any]]) -> tuple[Any, ...]:
    """The ids of modules, and the names of the metrics of each."""
    return (tuple(results), *map(tuple, results.values()))


def _total(values: list[Any]) -> Any:
    if set(map(type, values)) <= _PLAIN:
        return float(sum(values))
    tensors, numbers = _tensors(values), sum(_numbers(values))
    return torch.stack(tensors).sum() + numbers if tensors else numbers


def _tensors(values: list[Any]) -> list[Tensor]:
    return [value.detach().reshape(()) for value in values if isinstance(value, Tensor)]


def _numbers(values: list[Any]) -> list[float]:
    return [float(value) for value in values if not isinstance(value, Tensor)]
