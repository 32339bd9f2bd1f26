"""Prioritised experience replay (Schaul et al. 2015): a sum tree and importance weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy

from rlplug.batch.nested import to_arrays
from rlplug.config import Schedule
from rlplug.feeds.feed import Index

__all__ = ["Priorities", "SumTree"]

_WIDTH = 32
"""Children of a node; three levels hold a million rows. Few wide NumPy calls beat many narrow
ones."""


class Priorities:
    """Priorities of all rows of a ring buffer; new rows get the highest so far."""

    def __init__(
        self,
        rows: int,
        *,
        alpha: float,
        beta: Schedule,
        eps: float,
        least: Callable[[float], float] | None = None,
    ) -> None:
        self._alpha = alpha
        self._beta = beta
        self._eps = eps
        self._least = least
        self._tree = SumTree(rows)
        self._highest = 1.0

    @staticmethod
    def bytes_needed(rows: int) -> int:
        """Memory of a leaf for each row and the sums above."""
        return rows * 8 * 33 // 32

    def add(self, fresh: Any, gone: Any) -> None:
        """Add and remove rows."""
        self._tree.set(gone, 0.0)
        self._tree.set(fresh, self._highest)

    def draw(self, random: numpy.random.Generator, count: int, step: int) -> tuple[Any, Any]:
        """Rows and their importance weights, at most 1 over the rows of all learners."""
        rows = self._tree.draw(random, count)
        priorities = self._tree.leaves[rows]
        if self._least is None:
            least = priorities.min()
        else:
            # Buffers differ in their sums: what is compared is how probable each row was.
            priorities = priorities / self._tree.total
            least = self._least(float(priorities.min()))
        weights = (least / priorities) ** self._beta.at(step)
        return rows, weights.astype(numpy.float32)

    def learned(self, rows: Any, errors: Any) -> None:
        """Set priorities to `(|error| + eps) ** alpha`."""
        changed = numpy.abs(to_arrays(errors).astype(numpy.float64)) + self._eps
        changed **= self._alpha
        self._tree.set(to_arrays(rows), changed)
        self._highest = max(self._highest, float(changed.max()))

    def get_state(self) -> dict[str, Any]:
        """All priorities, and the highest so far."""
        return {"leaves": self._tree.leaves.copy(), "highest": self._highest}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        leaves = saved["leaves"]
        self._tree.set(numpy.arange(len(leaves)), leaves)
        self._highest = saved["highest"]


class SumTree:
    """A sum tree of three levels; sums are recomputed, not updated, so that they never drift."""

    def __init__(self, size: int) -> None:
        blocks = -(-size // _WIDTH)
        tops = -(-blocks // _WIDTH)
        self.leaves = numpy.zeros(tops * _WIDTH * _WIDTH)
        self._sums = numpy.zeros(tops * _WIDTH)
        self._tops = numpy.zeros(tops)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._tops.sum())

    def set(self, rows: Index, priorities: Any) -> None:
        """Set priorities; of duplicate rows the last counts."""
        if not len(rows):
            return
        self.leaves[rows] = priorities
        blocks = _distinct(rows // _WIDTH)
        self._sums[blocks] = self.leaves.reshape(-1, _WIDTH)[blocks].sum(1)
        tops = _distinct(blocks // _WIDTH)
        self._tops[tops] = self._sums.reshape(-1, _WIDTH)[tops].sum(1)

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
        found: Index = self._descend(self.leaves, block, left)
        return found

    def _descend(self, level: Any, parent: Any, left: Any) -> Any:
        """The child that `left` falls into; subtracts the sums of those before it in place."""
        within = level.reshape(-1, _WIDTH)[parent]
        sums = within.cumsum(1)
        child = numpy.minimum((sums <= left[:, None]).sum(1), _WIDTH - 1)
        each = numpy.arange(len(parent))
        left -= sums[each, child] - within[each, child]
        return parent * _WIDTH + child


def _distinct(rows: Any) -> Any:
    # For few rows, summing a block twice is cheaper than sorting.
    return numpy.unique(rows) if len(rows) > 4096 else rows
