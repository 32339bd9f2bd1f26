"""Rollout buffer: memory for the steps of one collection, allocated once and reused; its rows."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy

from rlplug.batch.nested import builtin_dtype, copied, first_leaf, to_arrays, tree_map
from rlplug.errors import PluginError
from rlplug.feeds import FinalObservations
from rlplug.spaces import ACTION_MASK

__all__ = ["RolloutBuffer", "StepViews", "finals_of", "put_rows", "rows_of", "with_rows"]


class RolloutBuffer:
    """Columns of `steps × num_envs` rows, ordered by time or environment by environment.

    Their names, shapes and dtypes are those of the first step written.
    """

    def __init__(self, steps: int, num_envs: int, *, by_environment: bool) -> None:
        self.columns: dict[str, Any] = {}
        self.grids: dict[str, Any] = {}
        """The same memory with two leading dimensions, time and environment."""
        self._shape = (num_envs, steps) if by_environment else (steps, num_envs)
        self._by_environment = by_environment

    def write(self, time: int, columns: Mapping[str, Any]) -> None:
        """Write one step."""
        for name, column in columns.items():
            grid = self.grids.get(name)
            if grid is None:
                grid = self.allocate(name, column, time)
            if type(grid) is numpy.ndarray:
                grid[time] = column
            else:
                tree_map(lambda leaf, part: leaf.__setitem__(time, part), grid, to_arrays(column))

    def write_rows(self, times: Any, envs: Any, columns: Mapping[str, Any]) -> None:
        """Write one row for each of these times and environments."""
        for name, column in columns.items():
            grid = self.grids.get(name)
            if grid is None:
                grid = self.allocate(name, column, int(times.min()))
            put_rows(grid, (times, envs), column)

    def pad(self, counts: Any, steps: int, current: Mapping[str, Any]) -> None:
        """Write what is acted on next behind the last row of each environment, up to `steps`."""
        for step in range(int(counts.min()), steps):
            envs = numpy.flatnonzero(counts <= step)
            for name, column in current.items():
                put_rows(self.grids[name], (step, envs), rows_of(column, envs))
            for name in ("rewards", "terminated", "truncated"):
                self.grids[name][step, envs] = 0

    def allocate(self, name: str, example: Any, time: int = 0) -> Any:
        """Add a column like this example of one step; returns its grid."""
        # Environments may begin to return masks later: everything was allowed before.
        if time and name != ACTION_MASK:
            raise PluginError(
                f"the module returned {name!r} only from step {time + 1} of a collection on.",
                "return the same extras in every step",
            )
        first, second = self._shape
        make = numpy.ones if name == ACTION_MASK else numpy.zeros
        self.columns[name] = tree_map(
            lambda part: make((first * second, *part.shape[1:]), builtin_dtype(part.dtype)),
            to_arrays(example),
        )
        grid = self.grids[name] = tree_map(self._by_time, self.columns[name])
        return grid

    def _by_time(self, leaf: Any) -> Any:
        grid = leaf.reshape(*self._shape, *leaf.shape[1:])
        return grid.swapaxes(0, 1) if self._by_environment else grid


def put_rows(arrays: Any, rows: Any, column: Any) -> None:
    """Write rows of nested arrays."""

    def put(array: Any, part: Any) -> None:
        array[rows] = part

    tree_map(put, arrays, to_arrays(column))


class StepViews:
    """Views of a rollout buffer for each step, for environments that write into it directly."""

    def __init__(self, buffer: RolloutBuffer, num_envs: int, observations: Any) -> None:
        grid = buffer.allocate("observations", observations)
        self.observations = [
            *(tree_map(itemgetter(time), grid) for time in range(len(first_leaf(grid)))),
            tree_map(numpy.empty_like, observations),
        ]
        """One more than there are steps: the observations to act on next."""
        self.rewards = list(buffer.allocate("rewards", numpy.zeros(num_envs)))
        self.terminated = list(buffer.allocate("terminated", numpy.zeros(num_envs, bool)))
        self.truncated = list(buffer.allocate("truncated", numpy.zeros(num_envs, bool)))
        self.actions: list[Any] = []
        """Empty until the module's first actions show their shape."""


def rows_of(column: Any, rows: Any) -> Any:
    """A copy of these rows, or of the one of this number."""
    if isinstance(rows, int):
        return tree_map(lambda leaf: numpy.array(leaf[rows]), column)
    return tree_map(lambda leaf: leaf[rows], column)


def with_rows(column: Any, rows: Any, part: Any) -> Any:
    """A copy of a column with other rows: the old one may be stored."""

    def replaced(leaf: Any, new: Any) -> Any:
        leaf = copied(leaf)
        leaf[rows] = to_arrays(new) if isinstance(leaf, numpy.ndarray) else new
        return leaf

    return tree_map(replaced, column, part)


def restarted(state: Any, rows: Any, initial: Any) -> Any:
    """A copy of a recurrent state in which these rows are as `initial`, the state of one row."""
    return with_rows(state, rows, tree_map(lambda leaf: leaf[[0] * len(rows)], initial))


def finals_of(finals: list[tuple[int, int, Any]], num_envs: int) -> FinalObservations | None:
    """Final observations by time and environment, as columns; those that some lack are left out."""
    if not finals:
        return None
    finals = sorted(finals, key=lambda one: one[:2])
    indices = numpy.array([time * num_envs + env for time, env, _ in finals])
    names = set.intersection(*(set(final) for _, _, final in finals))
    columns = {
        name: tree_map(lambda *parts: numpy.stack(parts), *(final[name] for _, _, final in finals))
        for name in sorted(names)
    }
    return FinalObservations(indices, columns)
