"""Ring buffer: transitions of several environments, every observation stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.errors import RequestError
from rlplug.feeds.allocation import allocate, row_bytes
from rlplug.feeds.feed import Experience, FeedSetting, Index
from rlplug.spaces import ACTION_MASK

__all__ = ["FINAL", "TERMINATED", "TRUNCATED", "RingBuffer"]

TERMINATED, TRUNCATED, FINAL = 1, 2, 4
"""Flags of a row; a FINAL one holds only the last observation of an episode."""

Writes: TypeAlias = "list[tuple[NDArray[Any], NDArray[Any]]]"
"""Arrays of the buffer, and the columns to write there."""

_BLOCK_BYTES = 2**22
"""About how much of a buffer is saved together."""

_NOT_ACTED = frozenset(("observations", ACTION_MASK, "terminated", "truncated"))


class RingBuffer:
    """Each environment has a ring of its own and overwrites its oldest rows.

    A row is an observation and what was done there; the next row of the same environment holds its
    next observation. The last observation of an episode has a row without an action. One row beyond
    the newest holds the observation to act on next, and frame stacks need some older rows.
    """

    def __init__(self, setting: FeedSetting, size: int) -> None:
        self.num_envs = setting.num_envs
        self.stack = setting.frame_stack
        self.live = _live_rows(setting, size)
        """Rows of each environment that can be drawn."""
        self.rows = self.live + self.stack
        self.setting = setting
        space = setting.observation_space
        self.mask_is_observed = isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces
        double, total = setting.double, self.num_envs * self.rows
        self.observed: dict[str, Any] = {
            "observations": allocate(space, total, double=double, frame_stack=self.stack)
        }
        """Observations, and action masks that are not part of them."""
        self.acted: dict[str, Any] = {
            "actions": allocate(setting.action_space, total, double=double),
            # Zeros: n-step returns read rows that were never written, and discard them.
            "rewards": numpy.zeros(total, numpy.float64 if double else numpy.float32),
        }
        """Actions, rewards, and the module's extras."""
        self.flags = numpy.empty(total, numpy.uint8)
        self.heads = numpy.zeros(self.num_envs, numpy.int64)
        """How many rows each environment has written so far."""
        self.starts = numpy.arange(self.num_envs) * self.rows
        self._counted = numpy.empty((0, 1), numpy.int64)
        row = max(self.bytes_needed(setting, size) // total, 1)
        self.block = max(min(_BLOCK_BYTES // row, self.rows // 16), 16)

    @staticmethod
    def bytes_needed(setting: FeedSetting, size: int) -> int:
        """Memory of a buffer of this size."""
        double, stack = setting.double, setting.frame_stack
        row = row_bytes(setting.observation_space, double=double, frame_stack=stack)
        row += row_bytes(setting.action_space, double=double) + (8 if double else 4) + 1
        return row * setting.num_envs * (_live_rows(setting, size) + stack)

    # -- writing -------------------------------------------------------------------------------

    def add(self, experience: Experience) -> Index:
        """Store experience; returns how many rows each environment had before."""
        if experience.after_reset is not False and self.heads.any():
            # The newest observation has no successor: it ends its episode, neither terminated nor
            # truncated.
            cut = self.heads.astype(bool) & experience.after_reset
            self.flags[self._slots(self.heads)[cut]] = FINAL
            self.heads = self.heads + cut
        before = self.heads
        columns = experience.columns
        flags = columns["truncated"].astype(numpy.uint8)
        flags += flags
        flags |= columns["terminated"]
        if self.num_envs == 1 and experience.stepped is None:
            self._add_slices(experience, flags)
        else:
            self._add_scattered(experience, flags)
        return before

    def changed(self, before: Index) -> tuple[Index, Index]:
        """Rows that can be drawn since then, and rows that cannot any more."""
        fresh = self._between(before, self.heads)
        fresh = fresh[(self.flags[fresh] & FINAL) == 0]
        lost = numpy.maximum(before - self.live, 0), numpy.maximum(self.heads - self.live, 0)
        return fresh, self._between(*lost)

    def _add_slices(self, experience: Experience, flags: NDArray[numpy.uint8]) -> None:
        """For one environment: write slices up to the end of each episode."""
        writes = self._writes(experience.columns)
        writes.append((self.flags, flags))
        times = flags.nonzero()[0]
        finals: Writes = []
        if len(times):
            finals = self._final_writes(experience, times, numpy.zeros_like(times))
        head, start = int(self.heads[0]), 0
        for number, time in enumerate(times.tolist()):
            self._write(writes, head, start, time + 1)
            head += time + 1 - start
            self._write(finals, head, number, number + 1)
            self.flags[head % self.rows] = FINAL
            head, start = head + 1, time + 1
        if start < experience.steps:
            self._write(writes, head, start, experience.steps)
            head += experience.steps - start
        self.heads = numpy.array([head])
        self._write(self._observation_writes(experience.following), head, 0, 1)

    def _write(self, writes: Writes, head: int, start: int, stop: int) -> None:
        """Write the rows of a slice at `head`, wrapping around at the end of the ring."""
        place = head % self.rows
        over = place + stop - start - self.rows
        if over > 0:
            self._write(writes, head, start, stop - over)
            self._write(writes, 0, stop - over, stop)
            return
        end = place + stop - start
        for array, column in writes:
            array[place:end] = column[start:stop]

    def _add_scattered(self, experience: Experience, flags: NDArray[numpy.uint8]) -> None:
        """For several environments, whose episodes end at different times."""
        before, steps = self.heads, experience.steps
        if len(self._counted) < steps:
            self._counted = numpy.arange(steps)[:, None]
        at = before + self._counted[:steps]
        ended = None
        if (experience.stepped is None or experience.counts is not None) and numpy.count_nonzero(
            flags
        ):
            # Each end takes one more row, which moves all later rows.
            ended = experience.ended()
            at[1:] += ended.cumsum(0)[:-1]
        slots = self._slots(at)
        slots = (slots.T if experience.by_environment else slots).reshape(-1)
        writes = self._writes(experience.columns)
        counts = experience.counts
        if counts is not None:
            slots = slots[experience.stepped]
            writes = [(array, column[experience.stepped]) for array, column in writes]
            flags = flags[experience.stepped]
        elif experience.stepped is not None:
            flags[~experience.stepped] = FINAL
        for array, column in writes:
            array[slots] = column
        self.flags[slots] = flags
        self.heads = before + (steps if counts is None else counts)
        if ended is not None:
            times, envs = numpy.nonzero(ended)
            slots = self.starts[envs] + (at[times, envs] + 1) % self.rows
            for array, column in self._final_writes(experience, times, envs):
                array[slots] = column
            self.flags[slots] = FINAL
            self.heads = self.heads + ended.sum(0)
        slots = self._slots(self.heads)
        for array, column in self._observation_writes(experience.following):
            array[slots] = column

    def _slots(self, at: Index) -> Index:
        """Where rows lie, given by their numbers per environment, shape (…, num_envs)."""
        slots: Index = self.starts + at % self.rows
        return slots

    def _writes(self, columns: Mapping[str, Any]) -> Writes:
        """All columns, and where to write them."""
        writes = self._observation_writes(columns)
        for name, column in columns.items():
            if name not in _NOT_ACTED:
                column = to_arrays(column)
                _pair_leaves(self._arrays_for(self.acted, name, column), column, writes)
        return writes

    def _observation_writes(self, columns: Mapping[str, Any]) -> Writes:
        """Observations and masks, and where to write them."""
        observations = to_arrays(columns["observations"])
        if self.stack > 1:
            # Only the newest frame of a stack.
            observations = tree_map(lambda leaf: leaf[:, -1], observations)
        writes: Writes = []
        _pair_leaves(self.observed["observations"], observations, writes)
        if ACTION_MASK in columns and not self.mask_is_observed:
            mask = to_arrays(columns[ACTION_MASK])
            _pair_leaves(self._arrays_for(self.observed, ACTION_MASK, mask), mask, writes)
        return writes

    def _final_writes(self, experience: Experience, times: Index, envs: Index) -> Writes:
        """The last observations of episodes that ended at these steps."""
        names = [name for name in ("observations", ACTION_MASK) if name in experience.following]
        finals = experience.finals
        if (
            finals is not None
            and len(finals.indices) == len(times)
            and all(name in finals.columns for name in names)
        ):
            # One for each of them, in the same order.
            return self._observation_writes({name: finals.columns[name] for name in names})
        return self._observation_writes(
            {name: experience.after(name, times, envs) for name in names}
        )

    def _arrays_for(self, stored: dict[str, Any], name: str, column: Any) -> Any:
        """Where a column is stored; masks and extras are allocated when they first come.

        Rows before that allow all actions; numbers that the module tells are unknown there.
        """
        if name not in stored:
            total = self.num_envs * self.rows

            def allocated(leaf: Any) -> Any:
                is_unknown = name != ACTION_MASK and leaf.dtype.kind == "f"
                filling = numpy.nan if is_unknown else 1
                return numpy.full((total, *leaf.shape[1:]), filling, leaf.dtype)

            stored[name] = tree_map(allocated, column)
        return stored[name]

    def _between(self, first: Index, last: Index) -> Index:
        """Where the rows with these numbers lie, from the first to before the last."""
        counts = last - first
        if not counts.any():
            return numpy.empty(0, numpy.int64)
        envs = numpy.repeat(numpy.arange(self.num_envs), counts)
        steps = numpy.arange(len(envs)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
        rows: Index = self.starts[envs] + (first[envs] + steps) % self.rows
        return rows

    # -- drawing -------------------------------------------------------------------------------

    def draw(self, random: numpy.random.Generator, count: int) -> Index:
        """Rows that are transitions, each with the same probability."""
        # A few more than wanted: FINAL rows are rejected.
        rows = self._draw_live(random, count + (count >> 3) + 8)
        while len(rows) < count:
            rows = numpy.concatenate((rows, self._draw_live(random, count)))
        return rows[:count]

    def holds_any(self) -> bool:
        """Whether there is a transition to draw."""
        return bool(numpy.count_nonzero(self.heads))

    def _draw_live(self, random: numpy.random.Generator, count: int) -> Index:
        """The transitions among `count` uniform draws of live rows."""
        # Many times as fast as `integers`, with a bias below one in 2**53 of the rows.
        places = random.random(count)
        if self.num_envs == 1:
            head = int(self.heads[0])
            live = min(head, self.live)
            places *= live
            rows: Index = places.astype(numpy.int64)
            rows += head - live
            rows %= self.rows
        else:
            sizes = numpy.minimum(self.heads, self.live)
            ends = sizes.cumsum()
            places *= ends[-1]
            rows = places.astype(numpy.int64)
            envs = numpy.searchsorted(ends, rows, side="right")
            rows += self.heads[envs] - ends[envs]
            rows %= self.rows
            rows += self.starts[envs]
        return rows[self.flags.take(rows) < FINAL]

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """All rows that are kept."""
        kept = [
            self.copy_rows(env, first, newest + 1)
            for env, (first, newest) in enumerate(self.kept())
        ]
        return {"rows": self.rows, "heads": self.heads.tolist(), "kept": kept}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.restart(saved["heads"], saved["rows"])
        for env, columns in enumerate(saved["kept"]):
            self.put_rows(env, self.kept()[env][0], columns)

    def kept(self) -> list[tuple[int, int]]:
        """The oldest and the newest row of each environment; of the newest, the observation."""
        return [(max(head - self.rows + 1, 0), head) for head in self.heads.tolist()]

    def copy_rows(self, env: int, first: int, stop: int) -> dict[str, Any]:
        """A copy of some rows; where nothing was done, actions and rewards are 0."""
        copy = partial(self._copy, start=env * self.rows + first % self.rows, count=stop - first)
        flags = copy(self.flags)
        if stop > self.heads[env]:
            flags[-1] = FINAL
        not_acted = (flags & FINAL) != 0

        def acted(leaf: Any) -> Any:
            part = copy(leaf)
            part[not_acted] = 0
            return part

        return {
            "observed": {name: tree_map(copy, column) for name, column in self.observed.items()},
            "acted": {name: tree_map(acted, column) for name, column in self.acted.items()},
            "flags": flags,
        }

    def put_rows(self, env: int, first: int, columns: Mapping[str, Any]) -> None:
        """Put a copy back."""
        writes: Writes = [(self.flags, columns["flags"])]
        for stored, part in ((self.observed, columns["observed"]), (self.acted, columns["acted"])):
            for name, column in part.items():
                _pair_leaves(self._arrays_for(stored, name, column), column, writes)
        rows = numpy.arange(first, first + len(columns["flags"]))
        slots = env * self.rows + rows % self.rows
        for array, column in writes:
            if array.shape[1:] != column.shape[1:]:
                raise RequestError(
                    f"the saved replay buffer has rows of shape {column.shape[1:]}, here they have "
                    f"{array.shape[1:]}.",
                    "use the environment and the frame_stack of the run that saved it",
                )
            array[slots] = column

    def clear(self) -> None:
        """Forget all rows."""
        self.heads = numpy.zeros(self.num_envs, numpy.int64)

    def restart(self, newest: Sequence[int], rows: int) -> None:
        """Forget all rows and continue after these, in as many rows."""
        if rows != self.rows or len(newest) != self.num_envs:
            raise RequestError(
                f"the saved replay buffer has {len(newest)} environments with {rows} rows each, "
                f"here there are {self.num_envs} with {self.rows}.",
                "use the buffer_size, num_envs and frame_stack of the run that saved it",
            )
        self.heads = numpy.array(newest, numpy.int64)

    def _copy(self, leaf: Any, start: int, count: int) -> Any:
        """A copy of rows from `start` on, which may go on at the beginning of the ring."""
        end = (start // self.rows + 1) * self.rows
        if start + count <= end:
            return leaf[start : start + count].copy()
        over = start + count - end
        return numpy.concatenate((leaf[start:end], leaf[end - self.rows : end - self.rows + over]))


def _pair_leaves(arrays: Any, column: Any, writes: Writes) -> None:
    if type(arrays) is numpy.ndarray:
        writes.append((arrays, column))
        return
    tree_map(lambda array, part: writes.append((array, part)), arrays, column)


def _live_rows(setting: FeedSetting, size: int) -> int:
    # Of two consecutive rows at least one is a transition: there is always one to draw.
    return max(size // setting.num_envs, 2)
