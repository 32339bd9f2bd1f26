"""Rings of transitions: how they are stored, drawn, read and saved, as arrays or as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.batch.nested import leaves, to_arrays, to_tensors, tree_map
from rlplug.envs.sync import has_fixed_shapes
from rlplug.errors import RequestError, UnsupportedSpaceError
from rlplug.feeds.feed import Experience, FeedSetting, Index, rows_of
from rlplug.spaces import ACTION_MASK, placeholder

__all__ = ["Ring", "TensorRing", "row_bytes"]

TERMINATED, TRUNCATED, CUT, FINAL = 1, 2, 4, 8
"""Flags of a row; after a CUT one, the environment was reset in mid-episode; a FINAL one holds an
observation that nothing was done at, and is not drawn."""
ENDED = TERMINATED | TRUNCATED | CUT
FLAGS = "flags"
NEXT = {"observations": "next_observations", ACTION_MASK: "next_action_mask"}
"""Columns of what is observed, and of what is observed next."""
NOT_DRAWN = frozenset((FLAGS, *NEXT.values()))
ENDS = frozenset(("terminated", "truncated"))

_BLOCK_BYTES = 2**22
"""About how much of a ring is saved together."""
_SPARE = 64
"""Draws beyond four times those wanted, where some rows of tensors only reset."""


class Ring:
    """Transitions of several environments, each of which overwrites its oldest rows.

    A row is an observation and what was done there. The next row of the same environment holds its
    next observation; the last observation of an episode has a row, too. One row beyond the newest
    holds the observation to act on next. Of stacked frames only the newest is stored. Row `slot` of
    an environment is numbered `env * rows + slot`.
    """

    library: Any = numpy
    """Whose functions compute with the columns."""
    to_native: Any = staticmethod(to_arrays)
    """Converts columns to the library's own."""

    in_lockstep = False
    """Whether all environments write equally many rows, as one ring."""

    def __init__(self, setting: FeedSetting, size: int, gamma: float, n_step: int) -> None:
        self.num_envs = setting.num_envs
        self.stack = setting.frame_stack
        # Of two consecutive rows at least one is a transition: there is always one to draw.
        self.live = max(size // setting.num_envs, 2)
        """Rows of each environment that can be drawn."""
        # The oldest ones hold the first frames of stacks, or what is acted on next.
        self.rows = self.live + self.stack
        """Rows of each environment that are kept."""
        rings = 1 if self.in_lockstep else setting.num_envs
        self.heads: Index = numpy.zeros(rings, numpy.int64)
        """How many rows were written so far: by each environment, or by all of them at once."""
        self._width = setting.num_envs // rings
        block = _BLOCK_BYTES // (row_bytes(setting) * self._width)
        self.block = max(min(block, self.rows // 16), 16)
        """Rows that are saved together."""
        self._total = setting.num_envs * self.rows
        self._starts = numpy.arange(setting.num_envs) * self.rows
        self._double = setting.double
        self._gamma, self._n_step = gamma, n_step
        self._on: Any = {} if setting.device is None else {"device": setting.device}
        powers = [gamma**steps for steps in range(n_step + 1)]
        self._discounts: Any = self.library.asarray(powers, **self._on)
        examples = {
            "observations": self._newest_frames(placeholder(setting.observation_space, 1)),
            "actions": placeholder(setting.action_space, 1),
            "rewards": numpy.zeros(1),
            FLAGS: numpy.zeros(1, numpy.uint8),
        }
        self.columns: dict[str, Any] = tree_map(self._allocated, self.to_native(examples))

    def holds_any(self) -> bool:
        """Whether there is a transition to draw."""
        return bool(numpy.count_nonzero(self.heads))

    # -- writing -------------------------------------------------------------------------------

    def add(self, experience: Experience) -> Any:
        """Store experience; returns the rows where it was written."""
        if experience.after_reset is not False:
            self._cut(experience.after_reset)
        heads, steps = self.heads, experience.steps
        stepped, counts = experience.stepped, experience.counts
        columns, following = dict(experience.columns), experience.following
        columns[FLAGS] = flags = columns["truncated"].view(numpy.uint8) * TRUNCATED
        flags |= columns["terminated"]
        if self.stack > 1:
            columns["observations"] = self._newest_frames(columns["observations"])
            following = {"observations": self._newest_frames(following["observations"])}
        ends: Any = flags.nonzero()[0] if stepped is None or counts is not None else ()
        finals = self._finals(experience, ends) if len(ends) else {}
        first, count = int(heads[0]) % self.rows, steps + len(ends)
        if self.num_envs == 1 and stepped is None and first + count < self.rows:
            self.heads = heads + count
            self._write_slices(first, columns, finals, following, ends.tolist())
            return numpy.arange(first, first + count)
        numbers = heads + numpy.arange(steps)[:, None]
        self.heads = heads + (steps if counts is None else counts)
        if len(ends):
            # Each end takes one more row, which moves all later rows.
            ended = experience.ended()
            numbers[1:] += ended.cumsum(0)[:-1]
            self.heads = self.heads + ended.sum(0)
        rows = self._at(numbers).reshape(-1)
        if counts is not None:
            rows, columns = rows[stepped], rows_of(columns, stepped)
        elif stepped is not None:
            flags[~stepped] = FINAL
        self._write(rows, columns)
        if len(ends):
            last = self._at(numbers + 1).reshape(-1)[ends]
            self._write(last, finals)
            rows = numpy.concatenate((rows, last))
        self._write(self._at(self.heads), following)
        return rows

    def _write_slices(
        self, place: int, columns: Any, finals: Any, following: Any, ends: Sequence[int]
    ) -> None:
        """Write rows of one environment, final ones among them: slices are the fastest."""
        stored, last, start = self._pairs(columns), self._pairs(finals), 0
        for number, end in enumerate(ends):
            behind = place + end + 1 - start
            for memory, column in stored:
                memory[place:behind] = column[start : end + 1]
            for memory, column in last:
                memory[behind] = column[number]
            place, start = behind + 1, end + 1
        behind = place + len(columns[FLAGS]) - start
        for memory, column in stored:
            memory[place:behind] = column[start:]
        for memory, column in self._pairs(following):
            memory[behind] = column[0]

    def _finals(self, experience: Experience, ends: Index) -> dict[str, Any]:
        """What the rows have that lie behind these, the last ones of their episodes."""
        finals, columns = experience.finals, {}
        if finals is not None and len(finals.indices) == len(ends):
            columns = dict(finals.columns)
        for name in experience.following.keys() - columns.keys():
            columns[name] = rows_of(experience.next_rows(name), ends)
        columns["observations"] = self._newest_frames(columns["observations"])
        return {**columns, FLAGS: numpy.full(len(ends), FINAL, numpy.uint8)}

    def spare(self) -> Any:
        """The rows that are kept and not drawn."""
        return self._at(self.heads + numpy.arange(self.stack)[:, None]).reshape(-1)

    def _cut(self, after_reset: Any) -> None:
        """These environments were reset: their newest observations lead to nothing."""
        cut = (self.heads > 0) & after_reset
        self.columns[FLAGS][self._at(self.heads)[cut]] = FINAL
        self.heads = self.heads + cut

    def _write(self, rows: Any, columns: Mapping[str, Any]) -> None:
        for memory, column in self._pairs(columns):
            memory[rows] = column

    def _pairs(self, columns: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        """Memory and what to write there, without nesting."""
        pairs: list[tuple[Any, Any]] = []
        for name, column in columns.items():
            if name not in ENDS:
                if name not in self.columns:
                    self.columns[name] = tree_map(self._allocated, column)
                memory = self.columns[name]
                if type(memory) is numpy.ndarray:
                    pairs.append((memory, column))
                else:
                    tree_map(lambda *pair: pairs.append(pair), memory, column)
        return pairs

    def _allocated(self, leaf: Any) -> Any:
        """Memory for a column like this one, of which the system uses what is written.

        Masks and extras may come later: earlier rows allow all actions, and numbers are unknown.
        """
        dtype = leaf.dtype
        if dtype == self.library.float64 and not self._double:
            dtype = self.library.float32
        stored = self.library.zeros((self._total, *leaf.shape[1:]), dtype=dtype, **self._on)
        if self.holds_any():
            stored[:] = math.nan if "float" in str(dtype) else 1
        return stored

    def _newest_frames(self, observations: Any) -> Any:
        if self.stack == 1:
            return observations
        return tree_map(lambda leaf: leaf[:, -1], observations)

    # -- drawing -------------------------------------------------------------------------------

    def draw(self, random: Any, count: int) -> Any:
        """Rows that are transitions, each with the same probability."""
        # A few more than wanted: FINAL rows are rejected.
        rows = self._draw_live(random, count + (count >> 3) + 8)
        while len(rows) < count:
            rows = numpy.concatenate((rows, self._draw_live(random, count)))
        return rows[:count]

    def _draw_live(self, random: Any, count: int) -> Any:
        """The transitions among `count` uniform draws of live rows."""
        # Many times as fast as `integers`, with a bias below one in 2**53 of the rows.
        places = random.random(count)
        if self.num_envs == 1:
            head = int(self.heads[0])
            live = min(head, self.live)
            places *= live
            rows = places.astype(numpy.int64)
            rows += head - live
            rows %= self.rows
        else:
            ends = numpy.minimum(self.heads, self.live).cumsum()
            places *= ends[-1]
            rows = places.astype(numpy.int64)
            envs = numpy.searchsorted(ends, rows, side="right")
            rows += self.heads[envs] - ends[envs]
            rows %= self.rows
            rows += self._starts[envs]
        return rows[self.columns[FLAGS].take(rows) < FINAL]

    def at(self, rows: Any, scale: Any = None) -> dict[str, Any]:
        """The columns of the transitions that begin at these rows; `scale` maps rewards.

        They are of up to `n_step` steps, and stop at ends of episodes and at the newest row.
        """
        flags, rewards = self._take(FLAGS, rows), self._take("rewards", rows)
        if scale is not None:
            rewards = scale(rewards)
        if self._n_step > 1:
            rewards, discounts, flags, last = self._n_step_returns(rows, rewards, flags, scale)
        else:
            discounts, last = self.library.empty_like(rewards), rows
            discounts[:] = self._gamma
        columns = {
            "rewards": rewards,
            "terminated": (flags & TERMINATED) != 0,
            "truncated": (flags & TRUNCATED) != 0,
            "discounts": discounts,
        }
        following = self._later(last, 1)
        for name in self.columns:
            if name in NEXT:
                columns[name] = self._observed(name, rows)
                beside = NEXT[name]
                if beside in self.columns:
                    columns[beside] = self._take(beside, last)
                else:
                    columns[beside] = self._observed(name, following)
            elif name not in columns and name not in NOT_DRAWN:
                columns[name] = self._take(name, rows)
        observations = columns["observations"]
        if type(observations) is dict and ACTION_MASK in observations:
            columns[ACTION_MASK] = observations[ACTION_MASK]
            columns["next_action_mask"] = columns["next_observations"][ACTION_MASK]
        return columns

    def _n_step_returns(self, rows: Any, rewards: Any, flags: Any, scale: Any) -> tuple[Any, ...]:
        """Discounted sums of rewards, discounts of what follows, flags, and the last rows."""
        where = self.library.where
        newest = self._newest(rows)
        going = ((flags & ENDED) == 0) & (rows != newest)
        steps, at = self.library.ones_like(rows), rows
        for step in range(1, self._n_step):
            at = self._later(at, 1)
            later_flags = self._take(FLAGS, at)
            going = going & (later_flags < FINAL)
            earned = self._take("rewards", at)
            earned = earned if scale is None else scale(earned)
            rewards = rewards + where(going, self._gamma**step * earned, 0)
            steps = steps + going
            flags = where(going, later_flags, flags)
            going = going & ((later_flags & ENDED) == 0) & (at != newest)
        return rewards, self._discounts[steps], flags, self._later(rows, steps - 1)

    def _observed(self, name: str, rows: Any) -> Any:
        """Observations or masks; frame stacks are without frames of an earlier episode."""
        if self.stack == 1 or name == ACTION_MASK:
            return self._take(name, rows)
        flags, starts = self.columns[FLAGS], rows - rows % self.rows
        frames = numpy.empty((len(rows), self.stack), numpy.int64)
        frames[:, -1] = at = rows
        started = numpy.zeros(len(rows), bool)
        is_short = self.heads[rows // self.rows] < self.rows
        for back in range(2, self.stack + 1):
            before = starts + (at - starts - 1) % self.rows
            # Before the very first row nothing was written yet.
            started |= (is_short & (at == starts)) | (flags[before] >= FINAL)
            at = numpy.where(started, at, before)
            frames[:, -back] = at
        return rows_of(self.columns[name], frames)

    def _take(self, name: str, rows: Any) -> Any:
        # Twice as fast as indexing.
        return tree_map(lambda leaf: leaf.take(rows, axis=0), self.columns[name])

    # -- places --------------------------------------------------------------------------------

    def _at(self, numbers: Index) -> Any:
        """Where rows lie, given by their numbers per environment, shape (…, num_envs)."""
        return self._starts + numbers % self.rows

    def _rows_of(self, ring: int, first: int, last: int) -> Any:
        """Where rows of a ring lie, from one number to before another."""
        return self._starts[ring] + numpy.arange(first, last) % self.rows

    def _later(self, rows: Any, steps: Any) -> Any:
        """The rows so many steps later in the same environments."""
        later = rows + steps
        if self.num_envs == 1:
            return later % self.rows
        return later - (later // self.rows > rows // self.rows) * self.rows

    def _newest(self, rows: Any) -> Any:
        """The newest rows of the same environments."""
        envs = rows // self.rows
        return self._starts[envs] + (self.heads[envs] - 1) % self.rows

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """All rows that are kept."""
        kept = enumerate(self.kept())
        copies = [self.copy_rows(ring, first, newest + 1) for ring, (first, newest) in kept]
        return {"rows": self.rows, "newest": self.heads.tolist(), "kept": copies}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.restart(saved["newest"], saved["rows"])
        for ring, columns in enumerate(saved["kept"]):
            self.put_rows(ring, self.kept()[ring][0], columns)

    def kept(self) -> list[tuple[int, int]]:
        """The numbers of the oldest and the newest row of each ring.

        Rows are numbered from 0 on, in the order they came; only the newest may still change.
        """
        return [(max(head - self.rows + 1, 0), head) for head in self.heads.tolist()]

    def copy_rows(self, ring: int, first: int, stop: int) -> dict[str, Any]:
        """A copy of some rows, nested columns; equal experience gives equal copies."""
        rows = self._rows_of(ring, first, stop)

        def copy(leaf: Any) -> Any:
            part = numpy.array(to_arrays(leaf[rows]))
            return part.reshape(stop - first, self._width, *part.shape[1:])

        return {name: tree_map(copy, column) for name, column in self.columns.items()}

    def put_rows(self, ring: int, first: int, columns: Mapping[str, Any]) -> None:
        """Put a copy back."""
        rows = self._rows_of(ring, first, first + len(columns[FLAGS]))
        flat = tree_map(lambda part: part.reshape(-1, *part.shape[2:]), columns)
        self._write(rows, self.to_native(flat))

    def clear(self) -> None:
        """Forget all rows."""
        self.heads = numpy.zeros_like(self.heads)

    def restart(self, newest: Sequence[int], rows: int) -> None:
        """Forget all rows and continue after these; refused if another number of them is kept."""
        if rows != self.rows or len(newest) != len(self.heads):
            raise RequestError(
                f"the saved replay buffer has {len(newest)} environments with {rows} rows each, "
                f"here there are {len(self.heads)} with {self.rows}.",
                "use the buffer_size, num_envs and frame_stack of the run that saved it",
            )
        self.heads = numpy.array(newest, numpy.int64)


class TensorRing(Ring):
    """All environments write one row per step, so that nothing here waits for the device.

    Where environments reset in the same step, next observations are stored beside observations;
    where they reset in the next step, rows that only reset hold them. Rows are numbered
    `slot * num_envs + env`.
    """

    library = torch
    in_lockstep = True
    to_native = staticmethod(to_tensors)

    def add(self, experience: Experience) -> Any:
        """Store experience; returns the rows where it was written."""
        if experience.after_reset is not False and self.holds_any():
            self._cut(True)
        head, columns = int(self.heads[0]), dict(experience.columns)
        stepped: Any = experience.stepped
        flags = columns["terminated"] | columns["truncated"].view(torch.uint8) * TRUNCATED
        columns[FLAGS] = flags if stepped is None else torch.where(stepped, flags, FINAL)
        if experience.ends is not None:
            columns["next_observations"] = experience.next_rows("observations")
            if ACTION_MASK in columns:
                # A final state without a mask may be bootstrapped from the value of any action.
                mask = experience.next_grid(ACTION_MASK) | experience.ended().unsqueeze(-1)
                columns["next_action_mask"] = mask.flatten(0, 1)
        rows = self._rows_of(0, head, head + experience.steps)
        self._write(rows, columns)
        self.heads = self.heads + experience.steps
        self._write(self.spare(), experience.following)
        return rows

    def spare(self) -> Any:
        """The rows that are kept and not drawn: those to act on next."""
        head = int(self.heads[0])
        return self._rows_of(0, head, head + 1)

    def draw(self, random: torch.Generator, count: int) -> Tensor:
        """Rows that are transitions, each with the same probability."""
        if "next_observations" in self.columns:
            return self._draw_live(random, count)
        # At most every second row only resets: so many draws hold enough others.
        rows = self._draw_live(random, 4 * count + _SPARE)
        only_resets = self.columns[FLAGS][rows] >= FINAL
        return rows[only_resets.to(torch.uint8).argsort(stable=True)[:count]]

    def _draw_live(self, random: torch.Generator, count: int) -> Tensor:
        head = int(self.heads[0])
        live = min(head, self.live)
        size = live * self.num_envs
        rows = torch.randint(size, (count,), generator=random, **self._on)
        oldest = (head - live) % self.rows
        return (rows + oldest * self.num_envs) % self._total

    def _cut(self, after_reset: Any) -> None:
        flags, head = self.columns[FLAGS], int(self.heads[0])
        flags[self._rows_of(0, head - 1, head)] |= CUT
        if "next_observations" not in self.columns:
            # What the newest rows lead to is behind them.
            flags[self.spare()] = FINAL
            self.heads = self.heads + 1

    def _write(self, rows: Any, columns: Mapping[str, Any]) -> None:
        for memory, column in self._pairs(columns):
            memory[rows] = column.to(memory)

    def _take(self, name: str, rows: Any) -> Any:
        return rows_of(self.columns[name], rows)

    def _rows_of(self, ring: int, first: int, last: int) -> Any:
        begin = first % self.rows * self.num_envs
        end = begin + (last - first) * self.num_envs
        if end <= self._total:
            return slice(begin, end)
        return torch.arange(begin, end, **self._on) % self._total

    def _later(self, rows: Any, steps: Any) -> Any:
        return (rows + steps * self.num_envs) % self._total

    def _newest(self, rows: Any) -> Any:
        newest = (int(self.heads[0]) - 1) % self.rows
        return newest * self.num_envs + rows % self.num_envs


def row_bytes(setting: FeedSetting) -> int:
    """Bytes of one row: observation, action, reward and flags."""
    real = 8 if setting.double else 4

    def size(space: spaces.Space[Any]) -> int:
        if not has_fixed_shapes(space):
            raise UnsupportedSpaceError(
                f"a replay buffer keeps values of a fixed size, found {space}.",
                "try: a wrapper that gives Box, Discrete, MultiDiscrete or MultiBinary",
            )
        parts = leaves(placeholder(space, 1))
        return sum(x.size * (real if x.dtype == numpy.float64 else x.itemsize) for x in parts)

    observation = size(setting.observation_space) // setting.frame_stack
    # Of tensors, next observations may be stored, too.
    observation *= 1 if setting.device is None else 2
    return observation + size(setting.action_space) + real + 1
