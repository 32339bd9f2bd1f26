"""Memory of a collection, which is reused, and rows of nested arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch.nested import builtin_dtype, copied, to_arrays, tree_map
from rlplug.errors import PluginError
from rlplug.feeds.feed import rows_of
from rlplug.spaces import ACTION_MASK

__all__ = ["Buffer", "put_rows", "restarted", "with_rows"]


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
        times, envs = numpy.nonzero(numpy.arange(steps)[:, None] >= counts)
        nothing = dict.fromkeys(("rewards", "terminated", "truncated"), 0)
        seen = {name: column for name, column in current.items() if name in self.grids}
        self.write((times, envs), {**rows_of(seen, envs), **nothing})

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


def put_rows(arrays: Any, rows: Any, column: Any) -> None:
    """Write rows of nested arrays."""
    tree_map(lambda array, part: array.__setitem__(rows, part), arrays, to_arrays(column))


def with_rows(column: Any, rows: Any, part: Any) -> Any:
    """A copy of a column with other rows: the old one may be stored."""

    def replaced(leaf: Any, new: Any) -> Any:
        # What begins as tensors may go on as arrays, and the other way round.
        leaf = torch.as_tensor(leaf) if isinstance(new, Tensor) else to_arrays(leaf)
        leaf = copied(leaf)
        leaf[rows] = new
        return leaf

    return tree_map(replaced, column, part)


def restarted(state: Any, rows: Any, initial: Any) -> Any:
    """A copy of a recurrent state in which these rows are as `initial`, the state of one row.

    On a device, `rows` is a mask, for which nothing waits.
    """

    def chosen(leaf: Any, first: Any) -> Any:
        return torch.where(rows.reshape(-1, *(1,) * (leaf.dim() - 1)), first, leaf)

    def first_rows(leaf: Any, first: Any) -> Any:
        first = first[[0] * len(rows)]
        return to_arrays(first) if isinstance(leaf, numpy.ndarray) else first

    if isinstance(rows, Tensor):
        return tree_map(chosen, state, initial)
    return with_rows(state, rows, tree_map(first_rows, state, initial))
