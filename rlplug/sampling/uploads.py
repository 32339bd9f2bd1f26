"""Copies of a rollout to a GPU that are begun while environments still step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlplug.batch.nested import tree_map

__all__ = ["Uploads"]

_PARTS = 8
"""Pieces of a rollout that are copied one by one."""

_ON_HOST = frozenset(("rewards", "terminated", "truncated", "stepped"))
"""Columns that feeds compute with on the host; they are small."""


class Uploads:
    """Copies finished rows of a rollout buffer, through pinned memory and on a stream of its own.

    A copy waits for nobody. What is copied next waits until what was copied before was read.
    """

    def __init__(self, device: torch.device, steps: int) -> None:
        self.every = -(-steps // _PARTS)
        """Steps after which to call `begin`."""
        self._device = device
        self._on_gpu = device.type == "cuda"
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(device) if self._on_gpu else None
        self._copied = cuda.Event() if self._on_gpu else None
        self._pinned: dict[str, Any] = {}
        """Of shape (steps, num_envs, …), as those on the device."""
        self._uploaded: dict[str, Any] = {}
        self._until: dict[str, int] = {}

    def begin(self, grids: Mapping[str, Any], stop: int) -> None:
        """Begin to copy the rows before a step that were not copied yet."""
        if self._stream is not None and not self._until:
            assert self._copied is not None
            # The last rollout has left pinned memory, and was learned from.
            self._copied.synchronize()
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        for name in grids.keys() - _ON_HOST:
            grid = grids[name]
            if name not in self._pinned:
                self._pinned[name] = tree_map(self._empty_pinned, grid)
                self._uploaded[name] = tree_map(self._empty_there, self._pinned[name])
            # Columns may come late, such as masks: with all rows from the first on.
            start, self._until[name] = self._until.get(name, 0), stop
            copy = partial(self._copy, rows=slice(start, stop))
            tree_map(copy, grid, self._pinned[name], self._uploaded[name])

    def finish(self, *, by_environment: bool) -> dict[str, Any]:
        """The copied columns as rows of the rollout."""
        if self._stream is not None:
            assert self._copied is not None
            self._copied.record(self._stream)
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        names, self._until = list(self._until), {}

        def rows(leaf: Tensor) -> Tensor:
            return (leaf.transpose(0, 1) if by_environment else leaf).flatten(0, 1)

        return {name: tree_map(rows, self._uploaded[name]) for name in names}

    def _copy(self, grid: Any, pinned: Tensor, uploaded: Tensor, rows: slice) -> None:
        pinned[rows].copy_(torch.from_numpy(grid[rows]))
        with self._on_stream():
            uploaded[rows].copy_(pinned[rows], non_blocking=True)

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _empty_pinned(self, grid: Any) -> Tensor:
        dtype = torch.from_numpy(grid[:0]).dtype
        return torch.empty(grid.shape, dtype=dtype, pin_memory=self._on_gpu)

    def _empty_there(self, pinned: Tensor) -> Tensor:
        return torch.empty_like(pinned, device=self._device, pin_memory=False)
