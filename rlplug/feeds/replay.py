"""Replay: a buffer of transitions that batches are drawn from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import attrs
import numpy
import torch

from rlplug.batch import Batch
from rlplug.batch.nested import leaves
from rlplug.config import Schedule
from rlplug.errors import PluginError, RequestError
from rlplug.feeds.feed import Experience, Feed, FeedSetting, OpenFeed, Work, rows_of, share
from rlplug.feeds.priorities import Priorities, SumTree, TensorSums
from rlplug.feeds.ring import FINAL, FLAGS, Ring, TensorRing, row_bytes
from rlplug.quantities import format_bytes
from rlplug.seeding import derive

__all__ = ["OpenReplay", "Replay"]

_positive = attrs.validators.ge(1)

_DRAWN_AT_ONCE = 2**23
"""Bytes of uniform draws that are gathered at once and split into batches."""


@attrs.frozen(kw_only=True)
class Replay(Feed):
    """Keep the last transitions of all environments, and draw batches from them."""

    takes_tensors: ClassVar[bool] = True
    buffer_size: int = attrs.field(default=1_000_000, validator=_positive)
    """Rows stored, shared equally among environments; each end of an episode takes one more."""
    batch_size: int = attrs.field(default=32, validator=_positive)
    """Rows of each batch, one update each."""
    learning_starts: int = attrs.field(default=100, validator=attrs.validators.ge(0))
    """Environment steps, summed over environments, before the first update."""
    train_freq: int = attrs.field(default=1, validator=_positive)
    """Steps of the vector environment between updates."""
    gradient_steps: int = attrs.field(default=1, validator=attrs.validators.ge(-1))
    """Updates every `train_freq` steps; -1: one per environment step taken."""
    gamma: float = 0.99
    """Discount factor of n-step returns, and of the column `discounts`."""
    n_step: int = attrs.field(default=1, validator=_positive)
    """Steps of n-step returns; fewer at the end of an episode."""
    prioritized: bool = False
    """Draw in proportion to `rows["priority"]` of the loss, not uniformly."""
    priority_alpha: float = 0.6
    """Exponent of priorities; 0: uniform draws, 1: proportional."""
    priority_beta: float | Schedule = 0.4
    """Exponent of importance weights; a number is annealed to 1 over the run."""
    priority_eps: float = 1e-6
    """Added to priorities, so that every row can be drawn."""

    def shared(self, learners: int) -> Self:
        """A share of the buffer and of each batch."""
        if self.gradient_steps < 0:
            raise RequestError(
                "gradient_steps = -1 counts the steps of one learner's environments; "
                f"{learners} learners could differ in it.",
                "try: --set gradient_steps=N",
            )
        return attrs.evolve(
            self,
            batch_size=share(self.batch_size, learners, "batch_size"),
            buffer_size=share(self.buffer_size, learners, "buffer_size"),
        )

    def open(self, setting: FeedSetting) -> OpenReplay:
        """Returns the feed of a run, or refuses options that cannot work, all at once."""
        if setting.has_memory:
            raise RequestError(
                "a replay buffer draws single transitions, but the module has memory.",
                "try: an algorithm whose feed is a rollout, or the option without memory",
            )
        problems = [f"{message}\n  {hint}" for message, hint in self._problems(setting)]
        if problems:
            message, hint = "\n".join(problems).rsplit("\n  ", 1)
            raise RequestError(message, hint)
        rows = self.buffer_size + setting.num_envs * setting.frame_stack
        # A priority takes a number of 8 bytes, and sums of 32 of them.
        needed = row_bytes(setting) * rows + self.prioritized * rows * 8 * 33 // 32
        left = _available_memory(setting.device)
        if needed > left:
            raise RequestError(
                f"a replay buffer of buffer_size = {self.buffer_size:,} takes "
                f"{format_bytes(needed)}, but only {format_bytes(left)} of memory are left.",
                f"try: --set buffer_size={int(self.buffer_size * left * 0.8 / needed)}",
            )
        return OpenReplay(self, setting, needed)

    def _problems(self, setting: FeedSetting) -> Iterator[tuple[str, str]]:
        """What is wrong with the options, each with a hint."""
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


class OpenReplay(OpenFeed):
    """A replay buffer in a run."""

    def __init__(self, described: Replay, setting: FeedSetting, needed: int) -> None:
        self.steps_per_collect = described.train_freq
        self._described = described
        self._normalization = setting.normalization
        self._seed, self._device = setting.seed, setting.device
        kind = Ring if setting.device is None else TensorRing
        self.rows: Ring = kind(setting, described.buffer_size, described.gamma, described.n_step)
        self._random: Any = numpy.random.default_rng(derive(setting.seed, "replay"))
        if setting.device is not None:
            self._random = torch.Generator(setting.device)
        self.bytes = needed
        """Memory of the full buffer."""
        self._step = 0
        self._learn_after = described.learning_starts
        """The step up to which rows are only stored."""
        self._priorities: Priorities | None = None
        if described.prioritized:
            beta, size = described.priority_beta, self.rows.rows * setting.num_envs
            if not isinstance(beta, Schedule):
                beta = Schedule(((0, beta), (setting.steps, 1.0)))
            self._priorities = Priorities(
                SumTree(size) if setting.device is None else TensorSums(size, setting.device),
                alpha=described.priority_alpha,
                beta=beta,
                eps=described.priority_eps,
                least=setting.least if setting.device is None else None,
            )

    def describe(self) -> str:
        """Size of the buffer and its memory."""
        where = "" if self._device is None else f" on {self._device}"
        size = format_bytes(self.bytes)
        return f"replay buffer of {self._described.buffer_size:,} rows, {size}{where}"

    def take(self, experience: Experience, step: int) -> Iterator[Work]:
        """Store experience; after `learning_starts`, draw batches."""
        ring = self.rows
        rows = ring.add(experience)
        if self._priorities is not None:
            self._priorities.add(rows, ring.columns[FLAGS][rows] < FINAL, ring.spare())
        self._step = step
        if step <= self._learn_after or not ring.holds_any():
            return iter(())
        if self._device is not None:
            # Depends on the step alone, so that the state is the same for every device.
            self._random.manual_seed(derive(self._seed, "replay", step))
        updates = self._described.gradient_steps
        updates = experience.count if updates < 0 else updates
        return self._uniform(updates) if self._priorities is None else self._by_priority(updates)

    def learned(self, work: Work, rows: Mapping[str, Any]) -> None:
        """Update the priorities of the rows drawn."""
        if self._priorities is None:
            return
        if "priority" not in rows:
            raise PluginError(
                "the feed draws by priority, but the loss gave none.",
                'return Loss(value, rows={"priority": error.abs()}), or switch prioritized off',
            )
        self._priorities.learned(rows["indices"], rows["priority"])

    def get_state(self) -> dict[str, Any]:
        """Transitions, priorities and the random generator."""
        return {
            "ring": self.rows.get_state(),
            **self.get_state_of_rows(),
            **self.get_state_without_rows(),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.rows.set_state(saved["ring"])
        self.set_state_of_rows(saved)
        self.set_state_without_rows(saved, empty=False)

    def get_state_of_rows(self) -> dict[str, Any]:
        """All priorities."""
        return {"priorities": None if self._priorities is None else self._priorities.get_state()}

    def get_state_without_rows(self) -> dict[str, Any]:
        """The random generator, and since when rows are learned from."""
        return {
            "random": None if self._device else self._random.bit_generator.state,
            "step": self._step,
            "learn_after": self._learn_after,
        }

    def set_state_of_rows(self, saved: Mapping[str, Any]) -> None:
        """Restore all priorities."""
        if self._priorities is not None and saved["priorities"] is not None:
            self._priorities.set_state(saved["priorities"])

    def set_state_without_rows(self, saved: Mapping[str, Any], *, empty: bool) -> None:
        """Restore the random generator; an empty buffer is filled again before it is drawn from."""
        if self._device is None:
            self._random.bit_generator.state = saved["random"]
        self._step = saved["step"]
        self._learn_after = saved["learn_after"]
        if empty:
            self._learn_after = self._step + self._described.learning_starts

    def _uniform(self, updates: int) -> Iterator[Work]:
        """Uniform batches do not depend on updates: many are gathered at once."""
        size = self._described.batch_size
        together = 1
        while updates > 0:
            rows = self.rows.draw(self._random, size * min(updates, together))
            columns = self._columns(rows)
            updates -= len(rows) // size
            if len(rows) == size:
                yield Work(Batch(columns, size))
            else:
                for start in range(0, len(rows), size):
                    yield Work(Batch(rows_of(columns, slice(start, start + size)), size))
            if together == 1 and updates > 0:
                drawn = sum(leaf.nbytes for leaf in leaves(columns))
                together = max(_DRAWN_AT_ONCE // max(drawn, 1), 1)

    def _by_priority(self, updates: int) -> Iterator[Work]:
        assert self._priorities is not None
        size = self._described.batch_size
        for _ in range(updates):
            rows, weights = self._priorities.draw(self._random, size, self._step)
            columns = {**self._columns(rows), "indices": rows, "weights": weights}
            yield Work(Batch(columns, size))

    def _columns(self, rows: Any) -> dict[str, Any]:
        normalization = self._normalization
        scale = None if normalization is None else normalization.rewards
        columns: dict[str, Any] = self.rows.at(rows, scale)
        if normalization is not None:
            for name in ("observations", "next_observations"):
                columns[name] = normalization.observations(columns[name])
        return columns


def _available_memory(device: torch.device | None) -> float:
    """Bytes that can still be allocated, infinite if the system does not say."""
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    left = math.inf
    with suppress(OSError):
        # On Linux.
        text = Path("/proc/meminfo").read_text()
        left = int(text.partition("MemAvailable:")[2].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        # In a container with a limit, which otherwise is "max".
        limit = int((group / "memory.max").read_text())
        left = min(left, max(limit - int((group / "memory.current").read_text()), 0))
    return left
