"""Prioritised experience replay: which rows are drawn, and what corrects for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy

from rlplug.batch.nested import to_arrays
from rlplug.config import Schedule
from rlplug.feeds.sum_tree import SumTree

if TYPE_CHECKING:
    from rlplug.feeds.replay import Replay

__all__ = ["Priorities"]


class Priorities:
    """Of every row of a ring; new ones get the highest so far, so that each is seen."""

    def __init__(self, described: Replay, rows: int, steps: int) -> None:
        self._alpha = described.priority_alpha
        self._eps = described.priority_eps
        beta = described.priority_beta
        self._beta = beta if isinstance(beta, Schedule) else Schedule(((0, beta), (steps, 1.0)))
        self._tree = SumTree(rows)
        self._highest = 1.0

    @staticmethod
    def bytes_needed(rows: int) -> int:
        """What they take: a leaf for each row, and the sums above."""
        return rows * 8 * 33 // 32

    def add(self, fresh: Any, gone: Any) -> None:
        """Rows came and went."""
        self._tree.set(gone, 0.0)
        self._tree.set(fresh, self._highest)

    def draw(self, random: numpy.random.Generator, count: int, step: int) -> tuple[Any, Any]:
        """Rows, and the weights of their losses: 1 for the rarest of the batch."""
        rows = self._tree.draw(random, count)
        priorities = self._tree.leaves[rows]
        weights = (priorities.min() / priorities) ** self._beta.at(step)
        return rows, weights.astype(numpy.float32)

    def learned(self, rows: Any, errors: Any) -> None:
        """What rows are worth now."""
        changed = numpy.abs(to_arrays(errors).astype(numpy.float64)) + self._eps
        changed **= self._alpha
        self._tree.set(to_arrays(rows), changed)
        self._highest = max(self._highest, float(changed.max()))

    def get_state(self) -> dict[str, Any]:
        """Every priority, and the highest so far."""
        return {"leaves": self._tree.leaves.copy(), "highest": self._highest}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Go on with them."""
        leaves = saved["leaves"]
        self._tree.set(numpy.arange(len(leaves)), leaves)
        self._highest = saved["highest"]
