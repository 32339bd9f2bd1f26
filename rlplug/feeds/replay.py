"""Keep transitions, and learn from draws of them again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy

from rlplug.batch import Batch
from rlplug.batch.nested import map_leaves
from rlplug.config import Schedule
from rlplug.errors import PluginError, RequestError
from rlplug.feeds.experience import Experience
from rlplug.feeds.feed import Feed, FeedSetting, OpenFeed, Work
from rlplug.feeds.memory import available_memory, in_words
from rlplug.feeds.priorities import Priorities
from rlplug.feeds.ring import Ring
from rlplug.feeds.transitions import Transitions
from rlplug.seeding import derive

__all__ = ["OpenReplay", "Replay"]

_positive = attrs.validators.ge(1)

_DRAWN_AT_ONCE = 2**23
"""Bytes of uniform draws that are gathered together and cut into batches."""


@attrs.frozen(kw_only=True)
class Replay(Feed):
    """Keep the last transitions of all environments, and draw batches from them."""

    buffer_size: int = attrs.field(default=1_000_000, validator=_positive)
    """Rows kept, shared equally among environments; the end of an episode takes one of them."""
    batch_size: int = attrs.field(default=32, validator=_positive)
    learning_starts: int = attrs.field(default=100, validator=attrs.validators.ge(0))
    """Environment steps, summed over environments, before the first update."""
    train_freq: int = attrs.field(default=1, validator=_positive)
    """Steps of the vector environment between updates: each is one step of every environment."""
    gradient_steps: int = attrs.field(default=1, validator=attrs.validators.ge(-1))
    """Updates each time; -1: as many as environment steps were taken."""
    gamma: float = 0.99
    n_step: int = attrs.field(default=1, validator=_positive)
    """Steps that one row spans, fewer where the episode ends."""
    prioritized: bool = False
    """Draw in proportion to `rows["priority"]` of the loss instead of uniformly."""
    priority_alpha: float = 0.6
    """How much priorities matter: 0 not at all, 1 in proportion."""
    priority_beta: float | Schedule = 0.4
    """How much of the bias `weights` take back; a number grows to 1 over the run."""
    priority_eps: float = 1e-6
    """Added to priorities, so that no row is lost."""

    def open(self, setting: FeedSetting) -> OpenReplay:
        """Make room, or refuse what cannot work."""
        self._check(setting)
        return OpenReplay(self, setting, self._bytes(setting))

    def _check(self, setting: FeedSetting) -> None:
        if setting.has_memory:
            raise RequestError(
                "a replay buffer draws single transitions, but the module has memory.",
                "try: an algorithm whose feed is a rollout, or the option without memory",
            )
        problems = list(self._problems(setting))
        if problems:
            *first, (message, hint) = problems
            above = [f"{said}\n  {advice}" for said, advice in first]
            raise RequestError("\n".join([*above, message]), hint)

    def _problems(self, setting: FeedSetting) -> Iterator[tuple[str, str]]:
        """What is wrong with the numbers, each with one thing to do."""
        if self.buffer_size < self.batch_size:
            yield (
                f"buffer_size = {self.buffer_size:,} is smaller than one batch: batch_size = "
                f"{self.batch_size:,}.",
                f"try: --set buffer_size={self.batch_size * 10}",
            )
        elif self.buffer_size // setting.num_envs < 2 * self.train_freq:
            yield (
                f"buffer_size = {self.buffer_size:,} does not hold what {setting.num_envs} "
                f"environments bring between updates: train_freq = {self.train_freq:,} steps of "
                "each, and the ends of their episodes.",
                f"try: --set buffer_size={2 * self.train_freq * setting.num_envs}",
            )
        if self.learning_starts >= setting.steps:
            yield (
                f"learning_starts = {self.learning_starts:,} lies beyond the run, which takes "
                f"{setting.steps:,} steps: nothing would be learned.",
                f"try: --set learning_starts={setting.steps // 10}",
            )

    def _bytes(self, setting: FeedSetting) -> int:
        needed = Ring.bytes_needed(setting, self.buffer_size)
        if self.prioritized:
            needed += Priorities.bytes_needed(self.buffer_size)
        left = available_memory()
        if left is not None and needed > left:
            raise RequestError(
                f"a replay buffer of buffer_size = {self.buffer_size:,} takes {in_words(needed)}, "
                f"but only {in_words(left)} of memory are left.",
                f"try: --set buffer_size={int(self.buffer_size * left * 0.8 / needed)}",
            )
        return needed


class OpenReplay(OpenFeed):
    """A replay buffer in a run."""

    def __init__(self, described: Replay, setting: FeedSetting, needed: int) -> None:
        self.steps_per_collect = described.train_freq
        self.bytes = needed
        """What it takes once it is full."""
        self._described = described
        self._normalization = setting.normalization
        self._random = numpy.random.default_rng(derive(setting.seed, "replay"))
        try:
            self._ring = Ring(setting, described.buffer_size)
        except MemoryError as error:
            raise RequestError(
                f"there is no memory for a replay buffer of {in_words(needed)}.",
                "try: a smaller buffer_size",
            ) from error
        self._transitions = Transitions(self._ring, described.gamma, described.n_step)
        self._priorities: Priorities | None = None
        if described.prioritized:
            rows = self._ring.rows * setting.num_envs
            self._priorities = Priorities(described, rows, setting.steps)

    def describe(self) -> str:
        """What it keeps and what that costs."""
        return f"replay buffer of {self._described.buffer_size:,} rows, {in_words(self.bytes)}"

    def take(self, experience: Experience, step: int) -> Iterator[Work]:
        """Keep it; from `learning_starts` on, draw batches."""
        before = self._ring.add(experience)
        if self._priorities is not None:
            self._priorities.add(*self._ring.changed(before))
        described = self._described
        if step <= described.learning_starts or not self._ring.holds_any():
            return iter(())
        updates = described.gradient_steps
        updates = experience.count if updates < 0 else updates
        priorities = self._priorities
        if priorities is None:
            return self._uniform(updates)
        return (self._by_priority(priorities, step) for _ in range(updates))

    def learned(self, work: Work, rows: Mapping[str, Any]) -> None:
        """Take back the priorities of what was drawn."""
        if self._priorities is None:
            return
        if "priority" not in rows:
            raise PluginError(
                "the feed draws by priority, but the loss gave none.",
                'return Loss(value, rows={"priority": error.abs()}), or switch prioritized off',
            )
        self._priorities.learned(rows["indices"], rows["priority"])

    def get_state(self) -> dict[str, Any]:
        """The transitions, their priorities and the generator."""
        return {
            "ring": self._ring.get_state(),
            "priorities": None if self._priorities is None else self._priorities.get_state(),
            "random": self._random.bit_generator.state,
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Go on with them."""
        self._ring.set_state(saved["ring"])
        if self._priorities is not None and saved["priorities"] is not None:
            self._priorities.set_state(saved["priorities"])
        self._random.bit_generator.state = saved["random"]

    def _uniform(self, updates: int) -> Iterator[Work]:
        """Batches that depend on nothing learned in between are gathered together."""
        size = self._described.batch_size
        together = 1
        while updates > 0:
            rows = self._ring.draw(self._random, size * min(updates, together))
            columns = self._columns(rows)
            updates -= len(rows) // size
            if len(rows) == size:
                yield Work(Batch(columns))
            else:
                for start in range(0, len(rows), size):
                    part = slice(start, start + size)
                    cut = {name: _cut(column, part) for name, column in columns.items()}
                    yield Work(Batch(cut))
            if together == 1 and updates > 0:
                together = max(_DRAWN_AT_ONCE // max(_bytes(columns), 1), 1)

    def _by_priority(self, priorities: Priorities, step: int) -> Work:
        rows, weights = priorities.draw(self._random, self._described.batch_size, step)
        return Work(Batch({**self._columns(rows), "indices": rows, "weights": weights}))

    def _columns(self, rows: Any) -> dict[str, Any]:
        normalization = self._normalization
        scale = None if normalization is None else normalization.rewards
        columns = self._transitions.at(rows, scale)
        if normalization is not None:
            for name in ("observations", "next_observations"):
                columns[name] = normalization.observations(columns[name])
        return columns


def _cut(column: Any, part: slice) -> Any:
    return map_leaves(column, lambda leaf: leaf[part])


def _bytes(columns: Mapping[str, Any]) -> int:
    total = 0

    def count(leaf: Any) -> None:
        nonlocal total
        total += leaf.nbytes

    for column in columns.values():
        map_leaves(column, count)
    return total
