"""Write what was collected into a ring: steps, the ends of episodes, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy
from numpy.typing import NDArray

from rlplug.batch.nested import map_leaves, map_pairs, to_arrays
from rlplug.feeds.experience import Experience
from rlplug.spaces import ACTION_MASK

if TYPE_CHECKING:
    from rlplug.feeds.ring import Ring

__all__ = ["FINAL", "TERMINATED", "TRUNCATED", "Index", "RingWriter"]

Index: TypeAlias = NDArray[numpy.int64]

TERMINATED, TRUNCATED, FINAL = 1, 2, 4
"""What is known of a row; a FINAL one holds only the observation that ended an episode."""

Pairs: TypeAlias = "list[tuple[NDArray[Any], NDArray[Any]]]"
"""Rooms, and what is written there."""

_NOT_DONE = frozenset(("observations", ACTION_MASK, "terminated", "truncated"))


class RingWriter:
    """Moves the heads of a ring over what it writes."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._counted = numpy.empty((0, 1), numpy.int64)

    def add(self, experience: Experience) -> Index:
        """Take in what was collected; how many rows each environment had before."""
        ring = self._ring
        if experience.after_reset and ring.heads.any():
            # What would have come next never came: it ends its episode without a verdict.
            ring.flags[self._slots(ring.heads)] = FINAL
            ring.heads = ring.heads + 1
        before = ring.heads
        flags = self._flags(experience)
        if ring.num_envs == 1 and experience.stepped is None:
            self._add_stretches(experience, flags)
        else:
            self._add_scattered(experience, flags)
        return before

    def _flags(self, experience: Experience) -> NDArray[numpy.uint8]:
        columns = experience.columns
        flags: NDArray[numpy.uint8] = columns["truncated"].astype(numpy.uint8)
        flags += flags
        flags |= columns["terminated"]
        return flags

    # -- one environment -----------------------------------------------------------------------

    def _add_stretches(self, experience: Experience, flags: NDArray[numpy.uint8]) -> None:
        """Rows that follow each other are written together, up to the end of an episode."""
        ring = self._ring
        pairs = self._pairs(experience.columns)
        pairs.append((ring.flags, flags))
        times = flags.nonzero()[0]
        finals: Pairs = []
        if len(times):
            finals = self._finals(experience, times, numpy.zeros_like(times))
        head, start = int(ring.heads[0]), 0
        for number, time in enumerate(times.tolist()):
            self._write(pairs, head, start, time + 1)
            head += time + 1 - start
            self._write(finals, head, number, number + 1)
            ring.flags[head % ring.rows] = FINAL
            head, start = head + 1, time + 1
        if start < experience.steps:
            self._write(pairs, head, start, experience.steps)
            head += experience.steps - start
        ring.heads = numpy.array([head])
        self._write(self._seen(experience.following), head, 0, 1)

    def _write(self, pairs: Pairs, head: int, start: int, stop: int) -> None:
        """Write rows from one on, and over the edge of the ring to its beginning."""
        rows = self._ring.rows
        place = head % rows
        over = place + stop - start - rows
        if over > 0:
            self._write(pairs, head, start, stop - over)
            self._write(pairs, 0, stop - over, stop)
            return
        end = place + stop - start
        for room, column in pairs:
            room[place:end] = column[start:stop]

    # -- several environments ------------------------------------------------------------------

    def _add_scattered(self, experience: Experience, flags: NDArray[numpy.uint8]) -> None:
        """Every environment has a stretch of its own, with ends where the others have none."""
        ring = self._ring
        before = ring.heads
        at = before + self._steps(experience.steps)
        ended = self._ends(experience, flags)
        if ended is not None:
            # Each end takes a row of its own, which all later rows make room for.
            at[1:] += ended.cumsum(0)[:-1]
        slots = self._slots(at)
        if experience.by_environment:
            slots = slots.T
        slots = slots.reshape(-1)
        for room, column in self._pairs(experience.columns):
            room[slots] = column
        if experience.stepped is not None:
            flags[~experience.stepped] = FINAL
        ring.flags[slots] = flags
        ring.heads = before + experience.steps
        if ended is not None:
            times, envs = numpy.nonzero(ended)
            slots = ring.starts[envs] + (at[times, envs] + 1) % ring.rows
            for room, column in self._finals(experience, times, envs):
                room[slots] = column
            ring.flags[slots] = FINAL
            ring.heads = ring.heads + ended.sum(0)
        slots = self._slots(ring.heads)
        for room, column in self._seen(experience.following):
            room[slots] = column

    def _ends(self, experience: Experience, flags: NDArray[numpy.uint8]) -> Any:
        """Where episodes ended, if those ends have no rows among what was collected."""
        if experience.stepped is not None or not numpy.count_nonzero(flags):
            return None
        return experience.ended()

    def _steps(self, steps: int) -> Index:
        """0, 1, … below each other."""
        if len(self._counted) < steps:
            self._counted = numpy.arange(steps)[:, None]
        return self._counted[:steps]

    def _slots(self, at: Index) -> Index:
        """Where rows lie, given by their numbers per environment, shape (…, num_envs)."""
        slots: Index = self._ring.starts + at % self._ring.rows
        return slots

    # -- what is written where -----------------------------------------------------------------

    def _pairs(self, columns: Mapping[str, Any]) -> Pairs:
        """What was seen, and what was done there."""
        pairs = self._seen(columns)
        ring = self._ring
        for name, column in columns.items():
            if name not in _NOT_DONE:
                column = to_arrays(column)
                _pair(ring.room(ring.done, name, column), column, pairs)
        return pairs

    def _seen(self, columns: Mapping[str, Any]) -> Pairs:
        """What is seen before acting; masks within observations are kept with them."""
        ring = self._ring
        seen = to_arrays(columns["observations"])
        if ring.stack > 1:
            # Of a stack only the newest frame.
            seen = map_leaves(seen, lambda leaf: leaf[:, -1])
        pairs: Pairs = []
        _pair(ring.kept["observations"], seen, pairs)
        if ACTION_MASK in columns and not ring.mask_is_seen:
            mask = to_arrays(columns[ACTION_MASK])
            _pair(ring.room(ring.kept, ACTION_MASK, mask), mask, pairs)
        return pairs

    def _finals(self, experience: Experience, times: Index, envs: Index) -> Pairs:
        """What ended episodes, at all of these steps."""
        names = [name for name in ("observations", ACTION_MASK) if name in experience.following]
        finals = experience.finals
        complete = finals is not None and len(finals.indices) == len(times)
        if finals is not None and complete and all(name in finals.columns for name in names):
            # One for each of them, in the same order.
            return self._seen({name: finals.columns[name] for name in names})
        return self._seen({name: experience.after(name, times, envs) for name in names})


def _pair(room: Any, column: Any, pairs: Pairs) -> None:
    if type(room) is numpy.ndarray:
        pairs.append((room, column))
        return
    map_pairs(room, column, lambda leaf, part: pairs.append((leaf, part)))
