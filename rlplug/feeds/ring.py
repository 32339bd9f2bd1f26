"""Transitions of several environments in one ring, every observation kept once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.batch.nested import map_leaves, map_pairs
from rlplug.errors import RequestError
from rlplug.feeds.experience import Experience
from rlplug.feeds.feed import FeedSetting
from rlplug.feeds.formats import bytes_of, room_for
from rlplug.feeds.ring_writer import FINAL, TERMINATED, TRUNCATED, Index, RingWriter
from rlplug.spaces import ACTION_MASK

__all__ = ["FINAL", "TERMINATED", "TRUNCATED", "Index", "Ring"]


class Ring:
    """Each environment writes its rows in a stretch of its own, and over its oldest rows.

    A row is an observation and what was done there; the next row of the same environment is where
    it led to. The observation that ends an episode has a row without an action. One row beyond the
    newest holds what will be acted on next, and stacks of frames need some older rows.
    """

    def __init__(self, setting: FeedSetting, size: int) -> None:
        self.num_envs = setting.num_envs
        self.stack = setting.frame_stack
        self.live = _live(setting, size)
        """How many rows of each environment can be drawn from."""
        self.rows = self.live + self.stack
        self.setting = setting
        space = setting.observation_space
        self.mask_is_seen = isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces
        double, total = setting.double, self.num_envs * self.rows
        seen = room_for(setting.observation_space, total, double=double, frame_stack=self.stack)
        self.kept: dict[str, Any] = {"observations": seen}
        self.done: dict[str, Any] = {
            "actions": room_for(setting.action_space, total, double=double),
            # Zeros, for sums over several steps may pass over rows that were never written.
            "rewards": numpy.zeros(total, numpy.float64 if double else numpy.float32),
        }
        self.flags = numpy.empty(total, numpy.uint8)
        self.heads = numpy.zeros(self.num_envs, numpy.int64)
        """How many rows each environment has written so far."""
        self.starts = numpy.arange(self.num_envs) * self.rows
        self._writer = RingWriter(self)

    @staticmethod
    def bytes_needed(setting: FeedSetting, size: int) -> int:
        """What a ring of this size takes."""
        double, stack = setting.double, setting.frame_stack
        row = bytes_of(setting.observation_space, double=double, frame_stack=stack)
        row += bytes_of(setting.action_space, double=double) + (8 if double else 4) + 1
        return row * setting.num_envs * (_live(setting, size) + stack)

    def add(self, experience: Experience) -> Index:
        """Take in what was collected; how many rows each environment had before."""
        return self._writer.add(experience)

    def changed(self, before: Index) -> tuple[Index, Index]:
        """The rows that can be drawn since then, and those that cannot any more."""
        fresh = self._between(before, self.heads)
        fresh = fresh[(self.flags[fresh] & FINAL) == 0]
        lost = numpy.maximum(before - self.live, 0), numpy.maximum(self.heads - self.live, 0)
        return fresh, self._between(*lost)

    def _between(self, first: Index, last: Index) -> Index:
        """Where the rows with these numbers lie, from the first to before the last."""
        counts = last - first
        if not counts.any():
            return _NOTHING
        envs = numpy.repeat(numpy.arange(self.num_envs), counts)
        steps = numpy.arange(len(envs)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
        rows: Index = self.starts[envs] + (first[envs] + steps) % self.rows
        return rows

    # -- drawing -------------------------------------------------------------------------------

    def draw(self, random: numpy.random.Generator, count: int) -> Index:
        """Rows that are transitions, each with the same probability."""
        # A few more than wanted, for some turn out to be no transitions.
        rows = self._some(random, count + (count >> 3) + 8)
        while len(rows) < count:
            rows = numpy.concatenate((rows, self._some(random, count)))
        return rows[:count]

    def holds_any(self) -> bool:
        """Whether there is a transition to draw."""
        return bool(numpy.count_nonzero(self.heads))

    def _some(self, random: numpy.random.Generator, count: int) -> Index:
        """The transitions among so many live rows, each of which is as likely as the others."""
        # Many times as fast as `integers`, and as fair to one part in 2**53 of the rows.
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

    def room(self, rooms: dict[str, Any], name: str, column: Any) -> Any:
        """Where a column is kept; what acting alone knows of is made room for when it comes."""
        if name not in rooms:
            total = self.num_envs * self.rows
            rooms[name] = map_leaves(
                column, lambda leaf: numpy.ones((total, *leaf.shape[1:]), leaf.dtype)
            )
        return rooms[name]

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything that was written, and no more."""
        used = int(min(self.heads.max(initial=0) + 1, self.rows))
        return {
            "rows": self.rows,
            "heads": self.heads.copy(),
            "kept": self._cut(self.kept, used),
            "done": self._cut(self.done, used),
            "flags": self._part(self.flags, used),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Go on with what was written then."""
        if saved["rows"] != self.rows or len(saved["heads"]) != self.num_envs:
            raise RequestError(
                f"the saved replay buffer has {len(saved['heads'])} environments with "
                f"{saved['rows']} rows each, here there are {self.num_envs} with {self.rows}.",
                "use the buffer_size, num_envs and frame_stack of the run that saved it",
            )
        self.heads = numpy.array(saved["heads"], numpy.int64)
        used = int(min(self.heads.max(initial=0) + 1, self.rows))

        def put(room: Any, part: Any) -> None:
            room.reshape(self.num_envs, self.rows, *room.shape[1:])[:, :used] = part

        for name, rooms in (("kept", self.kept), ("done", self.done)):
            for column, part in saved[name].items():
                flat = map_leaves(part, lambda leaf: leaf.reshape(-1, *leaf.shape[2:]))
                map_pairs(self.room(rooms, column, flat), part, put)
        put(self.flags, saved["flags"])

    def _cut(self, rooms: Mapping[str, Any], used: int) -> dict[str, Any]:
        return {
            name: map_leaves(room, lambda leaf: self._part(leaf, used))
            for name, room in rooms.items()
        }

    def _part(self, leaf: Any, used: int) -> Any:
        return leaf.reshape(self.num_envs, self.rows, *leaf.shape[1:])[:, :used]


_NOTHING: Index = numpy.empty(0, numpy.int64)


def _live(setting: FeedSetting, size: int) -> int:
    # Of two rows that follow each other one is a transition: there is always one to draw.
    return max(size // setting.num_envs, 2)
