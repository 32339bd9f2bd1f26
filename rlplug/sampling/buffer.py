"""Memory of a collection, which is reused, and rows of nested arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch.nested import builtin_dtype, copied, first_leaf, to_arrays, tree_map
from rlplug.errors import PluginError
from rlplug.feeds import FinalObservations
from rlplug.feeds.feed import rows_of
from rlplug.spaces import ACTION_MASK

__all__ = ["Buffer", "StepViews", "joined_finals", "put_rows", "restarted", "with_rows"]


class Buffer:
    """Columns of `steps × num` rows, ordered by time or environment by environment.

    Their names, shapes and dtypes are those of the first step written. They are arrays or, with a
    `device`, tensors on it.
    """

    def __init__(
        self, steps: int, num: int, *, by_environment: bool, device: torch.device | None = None
    ) -> None:
        self.columns: dict[str, Any] = {}
        self.grids: dict[str, Any] = {}
        """The same memory with two leading dimensions, time and environment."""
        self._shape = (num, steps) if by_environment else (steps, num)
        self._by_environment, self._device = by_environment, device

    def write(self, where: Any, columns: Mapping[str, Any]) -> None:
        """Write the step of a time, or one row for each of these times and environments."""
        for name, column in columns.items():
            grid = self.grids.get(name)
            if grid is None:
                grid = self.allocate(name, column, where)
            if type(grid) is numpy.ndarray:
                grid[where] = column
            elif self._device is None:
                put_rows(grid, where, column)
            else:
                tree_map(lambda leaf, part: leaf[where].copy_(part), grid, column)

    def pad(self, counts: Any, steps: int, current: Mapping[str, Any]) -> None:
        """Write what is acted on next behind the last row of each environment, up to `steps`."""
        for step in range(int(counts.min()), steps):
            envs = numpy.flatnonzero(counts <= step)
            for name, column in current.items():
                if name in self.grids:
                    put_rows(self.grids[name], (step, envs), rows_of(column, envs))
            for name in ("rewards", "terminated", "truncated"):
                self.grids[name][step, envs] = 0

    def allocate(self, name: str, example: Any, where: Any = 0) -> Any:
        """Add a column like this example of one step; returns its grid."""
        time = where if isinstance(where, int) else int(where[0].min())
        # Environments may begin to return masks later: everything was allowed before.
        if time and name != ACTION_MASK:
            raise PluginError(
                f"the module returned {name!r} only from step {time + 1} of a collection on.",
                "return the same extras in every step",
            )
        fill = 1 if name == ACTION_MASK else 0
        example = to_arrays(example) if self._device is None else example
        self.columns[name] = tree_map(partial(self._filled, fill), example)
        grid = self.grids[name] = tree_map(self._by_time, self.columns[name])
        return grid

    def _filled(self, fill: int, leaf: Any) -> Any:
        shape = (self._shape[0] * self._shape[1], *leaf.shape[1:])
        if self._device is None:
            return numpy.full(shape, fill, builtin_dtype(leaf.dtype))
        return torch.full(shape, fill, dtype=leaf.dtype, device=self._device)

    def _by_time(self, leaf: Any) -> Any:
        grid = leaf.reshape(*self._shape, *leaf.shape[1:])
        return grid.swapaxes(0, 1) if self._by_environment else grid


class StepViews:
    """Views of a buffer for each step, for environments that write into it directly."""

    def __init__(self, buffer: Buffer, num: int, observations: Any) -> None:
        grid = buffer.allocate("observations", observations)
        self.observations = [
            *(tree_map(itemgetter(time), grid) for time in range(len(first_leaf(grid)))),
            tree_map(numpy.empty_like, observations),
        ]
        """One more than there are steps: the observations to act on next."""
        self._rewards = list(buffer.allocate("rewards", numpy.zeros(num)))
        self._terminated = list(buffer.allocate("terminated", numpy.zeros(num, bool)))
        self._truncated = list(buffer.allocate("truncated", numpy.zeros(num, bool)))

    def of(self, time: int) -> tuple[Any, Any, Any, Any]:
        """What a step writes: the observations after it, rewards and ends, which are False."""
        terminated, truncated = self._terminated[time], self._truncated[time]
        terminated.fill(False)
        truncated.fill(False)
        return self.observations[time + 1], self._rewards[time], terminated, truncated


def put_rows(arrays: Any, rows: Any, column: Any) -> None:
    """Write rows of nested arrays."""
    tree_map(lambda array, part: array.__setitem__(rows, part), arrays, to_arrays(column))


def with_rows(column: Any, rows: Any, part: Any) -> Any:
    """A copy of a column with other rows: the old one may be stored."""

    def replaced(leaf: Any, new: Any) -> Any:
        # What begins as tensors may go on as arrays, and the other way round.
        if isinstance(new, Tensor):
            leaf = torch.as_tensor(leaf)
        elif isinstance(leaf, Tensor):
            leaf = leaf.numpy(force=True)
        leaf = copied(leaf)
        leaf[rows] = new
        return leaf

    return tree_map(replaced, column, part)


def restarted(state: Any, rows: Any, initial: Any) -> Any:
    """A copy of a recurrent state in which these rows are as `initial`, the state of one row.

    On a device, `rows` is a mask, for which nothing waits.
    """
    if isinstance(rows, Tensor):

        def chosen(leaf: Any, first: Any) -> Any:
            return torch.where(rows.reshape(-1, *(1,) * (leaf.dim() - 1)), first, leaf)

        return tree_map(chosen, state, initial)

    def first_rows(leaf: Any, first: Any) -> Any:
        first = first[[0] * len(rows)]
        return to_arrays(first) if isinstance(leaf, numpy.ndarray) else first

    return with_rows(state, rows, tree_map(first_rows, state, initial))


def joined_finals(finals: Sequence[tuple[Any, Mapping[str, Any]]]) -> FinalObservations | None:
    """Final observations as columns, in the order of their indices; those some lack are left out.

    Each part has `time * num + environment` of its rows.
    """
    if not finals:
        return None
    indices, columns = finals[0]
    if len(finals) > 1:
        indices = numpy.concatenate([own for own, _ in finals])
        parts = [own for _, own in finals]
        columns = {
            name: tree_map(lambda *leaves: numpy.concatenate(leaves), *(own[name] for own in parts))
            for name in sorted(set.intersection(*map(set, parts)))
        }
    if (indices[1:] < indices[:-1]).any():
        order = indices.argsort(kind="stable")
        indices, columns = indices[order], rows_of(columns, order)
    return FinalObservations(indices, columns)
