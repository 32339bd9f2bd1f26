"""Prioritised experience replay (Schaul et al. 2015): sums of priorities, importance weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch.nested import to_arrays
from rlplug.config import Schedule
from rlplug.feeds.feed import Index

__all__ = ["Priorities", "SumTree", "TensorSums"]

_WIDTH = 32
"""Children of a node; three levels hold a million rows. Few wide NumPy calls beat many narrow
ones."""


class Priorities:
    """Priorities of all rows of a ring; new rows get the highest so far."""

    def __init__(
        self,
        sums: SumTree | TensorSums,
        *,
        alpha: float,
        beta: Schedule,
        eps: float,
        least: Callable[[float], float] | None = None,
    ) -> None:
        self._sums: Any = sums
        self._alpha, self._beta, self._eps = alpha, beta, eps
        self._least = least
        self._highest = sums.leaves[0] + 1.0

    def add(self, rows: Any, is_drawn: Any, gone: Any) -> None:
        """Add rows, of which some are never drawn, and remove rows."""
        self._sums.set(gone, 0.0)
        self._sums.set(rows, is_drawn * self._highest)

    def draw(self, random: Any, count: int, step: int) -> tuple[Any, Any]:
        """Rows and their importance weights, at most 1 over the rows of all learners."""
        rows = self._sums.draw(random, count)
        priorities = self._sums.leaves[rows]
        if self._least is None:
            least = priorities.min()
        else:
            # Buffers differ in their sums: what is compared is how probable each row was.
            priorities = priorities / self._sums.total
            least = self._least(float(priorities.min()))
        return rows, (least / priorities) ** self._beta.at(step)

    def learned(self, rows: Any, errors: Any) -> None:
        """Set priorities to `(|error| + eps) ** alpha`."""
        priorities = (abs(self._sums.converted(errors)) + self._eps) ** self._alpha
        self._sums.set(rows, priorities)
        self._highest = self._sums.higher(self._highest, priorities.max())

    def get_state(self) -> dict[str, Any]:
        """All priorities, and the highest so far."""
        return {
            "leaves": numpy.array(to_arrays(self._sums.leaves)),
            "highest": float(self._highest),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._sums.load(saved["leaves"])
        self._highest = self._highest * 0 + saved["highest"]


class TensorSums:
    """Priorities on a device, summed up for each draw; nothing waits for the device."""

    higher = staticmethod(torch.maximum)

    def __init__(self, size: int, device: torch.device) -> None:
        # MPS has no float64.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.leaves = torch.zeros(size, dtype=dtype, device=device)

    def converted(self, errors: Tensor) -> Tensor:
        """Errors in the dtype of priorities."""
        return errors.detach().to(self.leaves.dtype)

    def set(self, rows: Tensor, priorities: Any) -> None:
        """Set priorities."""
        self.leaves[rows] = priorities

    def load(self, leaves: Any) -> None:
        """Set all priorities."""
        self.leaves.copy_(torch.from_numpy(leaves))

    def draw(self, random: torch.Generator, count: int) -> Tensor:
        """Draw rows in proportion to their priorities, one from each of `count` strata."""
        leaves, sums = self.leaves, self.leaves.cumsum(0)
        strata = torch.arange(count, device=leaves.device)
        offsets = torch.rand(count, generator=random, device=leaves.device, dtype=leaves.dtype)
        wanted = (strata + offsets) * (sums[-1] / count)
        # Rounding up to the whole sum would end beyond the last row.
        wanted = torch.minimum(wanted, sums[-1] * (1 - torch.finfo(leaves.dtype).eps))
        return torch.searchsorted(sums, wanted, right=True).clamp(max=len(leaves) - 1)


class SumTree:
    """A sum tree of three levels; sums are recomputed, not updated, so that they never drift."""

    higher = staticmethod(max)

    def __init__(self, size: int) -> None:
        tops = -(-size // _WIDTH**2)
        self.leaves = numpy.zeros(tops * _WIDTH**2)
        self._sums, self._tops = numpy.zeros(tops * _WIDTH), numpy.zeros(tops)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._tops.sum())

    def converted(self, errors: Any) -> Any:
        """Errors in the dtype of priorities."""
        return to_arrays(errors).astype(numpy.float64)

    def set(self, rows: Any, priorities: Any) -> None:
        """Set priorities; of duplicate rows the last counts."""
        rows = to_arrays(rows)
        self.leaves[rows] = priorities
        # For few rows, summing a block twice is cheaper than finding those that are equal.
        blocks = rows // _WIDTH
        self._sums[blocks] = self.leaves.reshape(-1, _WIDTH)[blocks].sum(1)
        tops = blocks // _WIDTH
        self._tops[tops] = self._sums.reshape(-1, _WIDTH)[tops].sum(1)

    def load(self, leaves: Any) -> None:
        """Set all priorities."""
        self.leaves[: len(leaves)] = leaves
        self._sums = self.leaves.reshape(-1, _WIDTH).sum(1)
        self._tops = self._sums.reshape(-1, _WIDTH).sum(1)

    def draw(self, random: numpy.random.Generator, count: int) -> Index:
        """Draw rows in proportion to their priorities, one from each of `count` strata."""
        sums = numpy.cumsum(self._tops)
        wanted = (numpy.arange(count) + random.random(count)) * (sums[-1] / count)
        rows = self._find(wanted, sums)
        # Rounding at the edge of a block may hit a row with priority 0.
        missed = numpy.flatnonzero(self.leaves[rows] == 0.0)
        while len(missed):
            rows[missed] = self._find(random.random(len(missed)) * sums[-1], sums)
            missed = missed[self.leaves[rows[missed]] == 0.0]
        return rows

    def _find(self, wanted: Any, sums: Any) -> Index:
        """The rows where the cumulative sum of priorities passes these values."""
        top = numpy.minimum(numpy.searchsorted(sums, wanted, side="right"), len(sums) - 1)
        left = wanted - (sums[top] - self._tops[top])
        block = self._descend(self._sums, top, left)
        rows: Index = self._descend(self.leaves, block, left)
        return rows

    def _descend(self, level: Any, parent: Any, left: Any) -> Any:
        """The child that `left` falls into; subtracts the sums of those before it in place."""
        within = level.reshape(-1, _WIDTH)[parent]
        sums = within.cumsum(1)
        child = numpy.minimum((sums <= left[:, None]).sum(1), _WIDTH - 1)
        each = numpy.arange(len(parent))
        left -= sums[each, child] - within[each, child]
        return parent * _WIDTH + child
