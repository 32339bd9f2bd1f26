"""Priorities of many rows, drawn from in proportion."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

__all__ = ["SumTree"]

Index: TypeAlias = NDArray[numpy.int64]

_WIDTH = 32
"""Children of a node. Three levels of this width serve a million rows: few, wide array operations
are faster than many narrow ones."""


class SumTree:
    """Leaves, the sums of blocks of them, and the sums of blocks of those.

    A change recomputes the sums above it, so that they never drift.
    """

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
        """Give rows their priorities; of a row named twice the last holds."""
        if not len(rows):
            return
        self.leaves[rows] = priorities
        blocks = _distinct(rows // _WIDTH)
        self._sums[blocks] = self.leaves.reshape(-1, _WIDTH)[blocks].sum(1)
        tops = _distinct(blocks // _WIDTH)
        self._tops[tops] = self._sums.reshape(-1, _WIDTH)[tops].sum(1)

    def draw(self, random: numpy.random.Generator, count: int) -> Index:
        """Rows in proportion to their priorities: one from each of `count` equal shares."""
        sums = numpy.cumsum(self._tops)
        wanted = (numpy.arange(count) + random.random(count)) * (sums[-1] / count)
        rows = self._find(wanted, sums)
        # Rounding at the border of a block may end on a row that nobody wants.
        missed = numpy.flatnonzero(self.leaves[rows] == 0.0)
        while len(missed):
            rows[missed] = self._find(random.random(len(missed)) * sums[-1], sums)
            missed = missed[self.leaves[rows[missed]] == 0.0]
        return rows

    def _find(self, wanted: Any, sums: Any) -> Index:
        """Where the running sum of priorities passes each of these values."""
        top = numpy.minimum(numpy.searchsorted(sums, wanted, side="right"), len(sums) - 1)
        left = wanted - (sums[top] - self._tops[top])
        block = self._descend(self._sums, top, left)
        found: Index = self._descend(self.leaves, block, left)
        return found

    def _descend(self, level: Any, parent: Any, left: Any) -> Any:
        """The child that `left` falls into; what is left within it takes its place."""
        within = level.reshape(-1, _WIDTH)[parent]
        sums = within.cumsum(1)
        child = numpy.minimum((sums <= left[:, None]).sum(1), _WIDTH - 1)
        each = numpy.arange(len(parent))
        left -= sums[each, child] - within[each, child]
        return parent * _WIDTH + child


def _distinct(rows: Any) -> Any:
    # Sorting a few to find those named twice costs more than summing a block twice.
    return numpy.unique(rows) if len(rows) > 4096 else rows
