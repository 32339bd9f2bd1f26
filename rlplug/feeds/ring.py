"""Transitions of several environments in one ring, every observation kept once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.batch.nested import each, paired, to_arrays
from rlplug.errors import RequestError
from rlplug.feeds.experience import Experience
from rlplug.feeds.feed import FeedSetting
from rlplug.feeds.formats import bytes_of, room_for
from rlplug.spaces import ACTION_MASK

__all__ = ["FINAL", "TERMINATED", "TRUNCATED", "Added", "Index", "Ring"]

Index: TypeAlias = NDArray[numpy.int64]

TERMINATED, TRUNCATED, FINAL = 1, 2, 4
"""What is known of a row; a FINAL one holds only the observation that ended an episode."""


@attrs.frozen(eq=False)
class Added:
    """Where an addition wrote, and how many rows each environment had before."""

    rows: Index
    before: Index


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
        self._counted = numpy.empty((0, 1), numpy.int64)

    @staticmethod
    def bytes_needed(setting: FeedSetting, size: int) -> int:
        """What a ring of this size takes."""
        double, stack = setting.double, setting.frame_stack
        row = bytes_of(setting.observation_space, double=double, frame_stack=stack)
        row += bytes_of(setting.action_space, double=double) + (8 if double else 4) + 1
        return row * setting.num_envs * (_live(setting, size) + stack)

    # -- writing -------------------------------------------------------------------------------

    def add(self, experience: Experience) -> Added:
        """Take in what was collected."""
        if experience.begins_anew and self.heads.any():
            # What would have come next never came: it ends its episode without a verdict.
            self.flags[self._slots(self.heads)] = FINAL
            self.heads = self.heads + 1
        before = self.heads
        at = before + self._steps(experience.steps)
        ended = self._ends(experience)
        if ended is not None:
            # Each end takes a row of its own, which all later rows make room for.
            at[1:] += ended.cumsum(0)[:-1]
        slots = self._slots(at).reshape(-1)
        self._write(slots, experience)
        self.heads = before + experience.steps
        if ended is not None:
            self._write_finals(at, ended, experience)
            self.heads = self.heads + ended.sum(0)
        following = experience.following
        names = self._seen_names(following)
        self._put(self._slots(self.heads), {name: following[name] for name in names})
        return Added(slots, before)

    def changed(self, added: Added) -> tuple[Index, Index]:
        """The rows that can be drawn since an addition, and those that cannot any more."""
        fresh = added.rows[(self.flags[added.rows] & FINAL) == 0]
        return fresh, self._outlived(added.before)

    def _ends(self, experience: Experience) -> Any:
        """Where episodes ended, if those ends have no rows among what was collected."""
        columns = experience.columns
        if experience.stepped is not None or not (
            numpy.count_nonzero(columns["terminated"]) or numpy.count_nonzero(columns["truncated"])
        ):
            return None
        return experience.ended()

    def _steps(self, steps: int) -> Index:
        """0, 1, … below each other."""
        if len(self._counted) < steps:
            self._counted = numpy.arange(steps)[:, None]
        return self._counted[:steps]

    def _write(self, slots: Index, experience: Experience) -> None:
        columns = experience.columns
        seen = self._seen_names(columns)
        self._put(slots, {name: self._by_time(experience, name) for name in seen})
        for name in columns:
            if name not in _NOT_DONE:
                column = self._by_time(experience, name)
                paired(self._room(self.done, name, column), column, _write_to(slots))
        flags = self._by_time(experience, "truncated").astype(numpy.uint8)
        flags <<= 1
        flags |= self._by_time(experience, "terminated")
        if experience.stepped is not None:
            flags[~experience.grid(experience.stepped).reshape(-1)] = FINAL
        self.flags[slots] = flags

    def _write_finals(self, at: Index, ended: Any, experience: Experience) -> None:
        times, envs = numpy.nonzero(ended)
        slots = self.starts[envs] + (at[times, envs] + 1) % self.rows
        self._put(
            slots,
            {
                name: experience.after(name, times, envs)
                for name in self._seen_names(experience.following)
            },
        )
        self.flags[slots] = FINAL

    def _seen_names(self, columns: Mapping[str, Any]) -> list[str]:
        """What is seen before acting; masks within observations are kept with them."""
        masks = ACTION_MASK in columns and not self.mask_is_seen
        return ["observations", ACTION_MASK] if masks else ["observations"]

    def _put(self, slots: Index, seen: Mapping[str, Any]) -> None:
        """Keep observations; of a stack only the newest frame."""
        for name, column in seen.items():
            column = to_arrays(column)
            if name == "observations" and self.stack > 1:
                column = each(column, lambda leaf: leaf[:, -1])
            paired(self._room(self.kept, name, column), column, _write_to(slots))

    def _room(self, rooms: dict[str, Any], name: str, column: Any) -> Any:
        """Where a column is kept; what acting alone knows of is made room for when it comes."""
        if name not in rooms:
            total = self.num_envs * self.rows
            rooms[name] = each(
                column, lambda leaf: numpy.ones((total, *leaf.shape[1:]), leaf.dtype)
            )
        return rooms[name]

    def _by_time(self, experience: Experience, name: str) -> Any:
        column = to_arrays(experience.columns[name])
        if not experience.by_environment:
            return column
        return each(experience.grid(column), lambda leaf: leaf.reshape(-1, *leaf.shape[2:]))

    def _outlived(self, before: Index) -> Index:
        """The rows that were live before and are not now."""
        oldest = numpy.maximum(before - self.live, 0)
        newest = numpy.maximum(self.heads - self.live, 0)
        counts = newest - oldest
        if not counts.any():
            return _NOTHING
        envs = numpy.repeat(numpy.arange(self.num_envs), counts)
        steps = numpy.arange(len(envs)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
        gone: Index = self.starts[envs] + (oldest[envs] + steps) % self.rows
        return gone

    def _slots(self, at: Index) -> Index:
        """Where rows lie, given by their numbers per environment, shape (…, num_envs)."""
        slots: Index = self.starts + at % self.rows
        return slots

    # -- drawing -------------------------------------------------------------------------------

    def draw(self, random: numpy.random.Generator, count: int) -> Index:
        """Rows that are transitions, each with the same probability."""
        sizes = numpy.minimum(self.heads, self.live)
        ends = sizes.cumsum()
        rows = self._nth(random.integers(ends[-1], size=count), sizes, ends)
        missed = numpy.flatnonzero(self.flags[rows] & FINAL)
        while len(missed):
            rows[missed] = self._nth(random.integers(ends[-1], size=len(missed)), sizes, ends)
            missed = missed[(self.flags[rows[missed]] & FINAL) != 0]
        return rows

    def holds_any(self) -> bool:
        """Whether there is a transition to draw."""
        return bool(self.heads.any())

    def _nth(self, places: Index, sizes: Index, ends: Index) -> Index:
        """The live rows with these numbers, counted through all environments from the oldest."""
        envs = numpy.searchsorted(ends, places, side="right")
        at = self.heads[envs] - ends[envs] + places
        found: Index = self.starts[envs] + at % self.rows
        return found

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
                flat = each(part, lambda leaf: leaf.reshape(-1, *leaf.shape[2:]))
                paired(self._room(rooms, column, flat), part, put)
        put(self.flags, saved["flags"])

    def _cut(self, rooms: Mapping[str, Any], used: int) -> dict[str, Any]:
        return {
            name: each(room, lambda leaf: self._part(leaf, used)) for name, room in rooms.items()
        }

    def _part(self, leaf: Any, used: int) -> Any:
        return leaf.reshape(self.num_envs, self.rows, *leaf.shape[1:])[:, :used]


_NOT_DONE = frozenset(("observations", ACTION_MASK, "terminated", "truncated"))

_NOTHING: Index = numpy.empty(0, numpy.int64)


def _live(setting: FeedSetting, size: int) -> int:
    # Of two rows that follow each other one is a transition: there is always one to draw.
    return max(size // setting.num_envs, 2)


def _write_to(slots: Index) -> Any:
    def write(room: Any, part: Any) -> None:
        room[slots] = part

    return write
