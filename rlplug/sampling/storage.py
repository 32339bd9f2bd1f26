"""Memory for the steps of one collection, taken once and written again each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from rlplug.batch.nested import each, paired, to_arrays
from rlplug.errors import PluginError
from rlplug.spaces import ACTION_MASK

__all__ = ["Rooms", "Storage"]


class Storage:
    """Columns of `steps × num_envs` rows, in the order of time or environment by environment.

    Their names, shapes and formats are those of the first step written.
    """

    def __init__(self, steps: int, num_envs: int, *, by_environment: bool) -> None:
        self.columns: dict[str, Any] = {}
        self._shape = (num_envs, steps) if by_environment else (steps, num_envs)
        self._by_environment = by_environment
        self._grids: dict[str, Any] = {}

    def write(self, time: int, columns: Mapping[str, Any]) -> None:
        """Keep one step."""
        grids = self._grids
        for name, column in columns.items():
            grid = grids.get(name)
            if grid is None:
                grid = self._add(name, column, time)
            if type(grid) is numpy.ndarray:
                grid[time] = column
            else:
                paired(grid, to_arrays(column), lambda leaf, part: leaf.__setitem__(time, part))

    def grid(self, name: str) -> Any:
        """A column by time and environment; None if there is none."""
        return self._grids.get(name)

    def places(self, name: str, example: Any) -> list[Any]:
        """Where the steps of a column lie, one array of `num_envs` rows for each time."""
        if name not in self._grids:
            self._add(name, example, 0)
        return list(self._grids[name])

    def _add(self, name: str, column: Any, time: int) -> Any:
        # An environment may begin to tell masks: until then everything was allowed.
        if time and name != ACTION_MASK:
            raise PluginError(
                f"the module returned {name!r} only from step {time + 1} of a collection on.",
                "return the same extras in every step",
            )
        self.columns[name] = each(to_arrays(column), self._room)
        if name == ACTION_MASK:
            self.columns[name].fill(1)
        self._grids[name] = each(self.columns[name], self._by_time)
        return self._grids[name]

    def _room(self, part: Any) -> Any:
        first, second = self._shape
        return numpy.zeros((first * second, *part.shape[1:]), part.dtype)

    def _by_time(self, leaf: Any) -> Any:
        grid = leaf.reshape(*self._shape, *leaf.shape[1:])
        return grid.swapaxes(0, 1) if self._by_environment else grid


class Rooms:
    """Where environments themselves write a collection, by time."""

    def __init__(self, storage: Storage, num_envs: int, observations: Any) -> None:
        places = storage.places
        self.seen = [*places("observations", observations), numpy.empty_like(observations)]
        """One more than there are steps: what will be acted on next."""
        self.rewards = places("rewards", numpy.zeros(num_envs))
        self.terminated = places("terminated", numpy.zeros(num_envs, bool))
        self.truncated = places("truncated", numpy.zeros(num_envs, bool))
        self._ends = storage.columns["terminated"], storage.columns["truncated"]

    def begin(self, observations: Any) -> None:
        """Begin a collection with what was seen last; no episode has ended in it."""
        self.seen[0][:] = observations
        for ends in self._ends:
            ends.fill(False)
