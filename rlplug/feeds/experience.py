"""What was seen in some steps of a vector of environments, and where each step led to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

from rlplug.batch.nested import each, paired, to_arrays

__all__ = ["Experience", "Finals"]

Index: TypeAlias = NDArray[numpy.int64]


class Finals:
    """Observations that ended episodes, where the vector goes on without showing them."""

    __slots__ = ("places", "seen")

    def __init__(self, places: Index, seen: Mapping[str, Any]) -> None:
        self.places = places
        """`time * num_envs + environment` of the steps that led to them, increasing."""
        self.seen = seen
        """One row each of `observations`, and of `action_mask` where there are masks."""

    def are_of(self, places: Index, name: str) -> bool:
        """Whether exactly these steps led to them."""
        if name not in self.seen or len(places) != len(self.places):
            return False
        return not numpy.count_nonzero(places != self.places)


class Experience:
    """Columns with one row per environment and step; valid until the next is collected.

    Rows lie in the order of time, or environment by environment.
    """

    __slots__ = (
        "begins_anew",
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
        finals: Finals | None = None,
        stepped: NDArray[numpy.bool_] | None = None,
        begins_anew: bool = False,
        states: Sequence[Any] = (),
        initial_state: Any = None,
    ) -> None:
        self.columns = columns
        self.steps = steps
        self.num_envs = num_envs
        self.by_environment = by_environment
        self.following: Mapping[str, Any] = {} if following is None else following
        """What will be acted on next, one row per environment: `observations`, maybe masks."""
        self.finals = finals
        self.stepped = stepped
        """False where an environment did nothing but reset; None if all stepped."""
        self.begins_anew = begins_anew
        """Whether it begins with a reset, so that nothing before leads to it."""
        self.states: Sequence[Any] = states
        """The memory before the first step, and then at equal intervals."""
        self.initial_state = initial_state
        """The memory of one fresh episode."""

    @property
    def count(self) -> int:
        """How many environment steps these are."""
        if self.stepped is None:
            return self.steps * self.num_envs
        return int(numpy.count_nonzero(self.stepped))

    def grid(self, column: Any) -> Any:
        """A column by time and environment: shape (steps, num_envs, …), without a copy."""
        return each(column, self._grid)

    def ended(self) -> NDArray[numpy.bool_]:
        """Where episodes ended, by time and environment."""
        columns = self.columns
        ended: NDArray[numpy.bool_] = self._grid(columns["terminated"] | columns["truncated"])
        return ended

    def after(self, name: str, times: Index, envs: Index) -> Any:
        """What these steps led to: their next `observations` or `action_mask`, one row each."""
        finals = self.finals
        if finals is not None and finals.are_of(times * self.num_envs + envs, name):
            return finals.seen[name]
        following = to_arrays(self.following[name])
        inside = times + 1 < self.steps
        last = numpy.flatnonzero(~inside)
        later = numpy.where(inside, times + 1, times)
        found = self._found(times, envs)

        def rows(leaf: Any, next_leaf: Any) -> Any:
            chosen = self._grid(leaf)[later, envs]
            if len(last):
                chosen[last] = next_leaf[envs[last]]
            return chosen

        column = paired(to_arrays(self.columns[name]), following, rows)
        return column if found is None else self._with_finals(name, column, *found)

    def next_rows(self) -> Any:
        """The next observations of all rows, in their order."""
        if self.steps == 1:
            column = self.following["observations"]
            if self.finals is None:
                return column
            column = each(column, lambda leaf: leaf.copy())
            places = self.finals.places
            return self._with_finals("observations", column, places, numpy.arange(len(places)))
        times, envs = self.places()
        return self.after("observations", times, envs)

    def places(self) -> tuple[Index, Index]:
        """Time and environment of each row, in their order."""
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

    def _found(self, times: Index, envs: Index) -> tuple[Index, Index] | None:
        """Which of these steps have a final observation kept aside, and which one."""
        if self.finals is None:
            return None
        places = self.finals.places
        wanted = times * self.num_envs + envs
        near = numpy.minimum(numpy.searchsorted(places, wanted), len(places) - 1)
        rows = numpy.flatnonzero(places[near] == wanted)
        return rows, near[rows]

    def _with_finals(self, name: str, column: Any, rows: Index, which: Index) -> Any:
        assert self.finals is not None
        if name not in self.finals.seen:
            return column

        def put(leaf: Any, final: Any) -> Any:
            leaf[rows] = final[which]
            return leaf

        return paired(column, self.finals.seen[name], put)
