"""Experience: the columns of some steps of a vector environment, and their next observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

from rlplug.batch.nested import copied, map_leaves, map_pairs, to_arrays

__all__ = ["Experience", "FinalObservations", "Index"]

Index: TypeAlias = NDArray[numpy.int64]


class FinalObservations:
    """Last observations of episodes, from vectors that return the next episode's instead."""

    __slots__ = ("columns", "indices")

    def __init__(self, indices: Index, columns: Mapping[str, Any]) -> None:
        self.indices = indices
        """`time * num_envs + environment` of the steps that led to them, increasing."""
        self.columns = columns
        """`observations`, and `action_mask` where there are masks, one row per index."""


class Experience:
    """Columns with one row per environment and step; valid until the next is collected.

    Rows are ordered by time, or environment by environment.
    """

    __slots__ = (
        "after_reset",
        "by_environment",
        "columns",
        "finals",
        "following",
        "initial_state",
        "num_envs",
        "states",
        "stepped",
        "steps",
    )

    def __init__(
        self,
        columns: dict[str, Any],
        *,
        steps: int,
        num_envs: int,
        by_environment: bool = False,
        following: Mapping[str, Any] | None = None,
        finals: FinalObservations | None = None,
        stepped: NDArray[numpy.bool_] | None = None,
        after_reset: bool = False,
        states: Sequence[Any] = (),
        initial_state: Any = None,
    ) -> None:
        self.columns = columns
        self.steps = steps
        self.num_envs = num_envs
        self.by_environment = by_environment
        self.following: Mapping[str, Any] = {} if following is None else following
        """`observations`, maybe `action_mask`, after the last step, one row per environment."""
        self.finals = finals
        self.stepped = stepped
        """False where an environment only reset; None if all stepped."""
        self.after_reset = after_reset
        """Whether the environments were reset before it: earlier steps do not lead here."""
        self.states: Sequence[Any] = states
        """Recurrent states before the first step, and then at equal intervals."""
        self.initial_state = initial_state
        """Recurrent state of one new episode."""

    @property
    def count(self) -> int:
        """The number of environment steps."""
        if self.stepped is None:
            return self.steps * self.num_envs
        return int(numpy.count_nonzero(self.stepped))

    def grid(self, column: Any) -> Any:
        """A view of a column with shape (steps, num_envs, …)."""
        return map_leaves(column, self._grid)

    def ended(self) -> NDArray[numpy.bool_]:
        """Where episodes ended, shape (steps, num_envs)."""
        columns = self.columns
        ended: NDArray[numpy.bool_] = self._grid(columns["terminated"] | columns["truncated"])
        return ended

    def after(self, name: str, times: Index, envs: Index) -> Any:
        """Next `observations` or `action_mask` of these steps, one row each."""
        last = numpy.flatnonzero(times + 1 == self.steps)
        later = numpy.minimum(times + 1, self.steps - 1)

        def rows(leaf: Any, next_leaf: Any) -> Any:
            chosen = self._grid(leaf)[later, envs]
            if len(last):
                chosen[last] = next_leaf[envs[last]]
            return chosen

        column = map_pairs(to_arrays(self.columns[name]), to_arrays(self.following[name]), rows)
        finals = self.finals
        if finals is None or name not in finals.columns:
            return column
        wanted = times * self.num_envs + envs
        near = numpy.searchsorted(finals.indices, wanted).clip(max=len(finals.indices) - 1)
        found = numpy.flatnonzero(finals.indices[near] == wanted)
        return _with_rows(column, found, finals.columns[name], near[found])

    def next_observations(self) -> Any:
        """The next observations of all rows, in their order."""
        if self.steps > 1:
            return self.after("observations", *self.times_and_envs())
        column = self.following["observations"]
        if self.finals is None:
            return column
        final, indices = self.finals.columns["observations"], self.finals.indices
        return _with_rows(map_leaves(column, copied), indices, final, slice(None))

    def times_and_envs(self) -> tuple[Index, Index]:
        """Time and environment of each row."""
        order = numpy.arange(self.steps * self.num_envs)
        if self.by_environment:
            envs, times = numpy.divmod(order, self.steps)
        else:
            times, envs = numpy.divmod(order, self.num_envs)
        return times, envs

    def _grid(self, leaf: Any) -> Any:
        shape = leaf.shape[1:]
        if self.by_environment:
            return leaf.reshape(self.num_envs, self.steps, *shape).swapaxes(0, 1)
        return leaf.reshape(self.steps, self.num_envs, *shape)


def _with_rows(column: Any, rows: Index, others: Any, which: Any) -> Any:
    """Writes `others[which]` into these rows of a column."""

    def put(leaf: Any, other: Any) -> Any:
        leaf[rows] = other[which]
        return leaf

    return map_pairs(column, others, put)
