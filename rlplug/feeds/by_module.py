"""The feeds of several modules: each module's own, and their work put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlplug.feeds.feed import Experience, OpenFeed, Work

__all__ = ["ModuleExperience", "ModuleFeeds"]


@dataclass(slots=True)
class ModuleExperience(Experience):
    """A collection in environments with several agents; it counts steps of the environments."""

    by_module: Mapping[str, Experience] = field(default_factory=dict, kw_only=True)
    """What the agents of each module did; modules whose agents did nothing are missing."""
    idle: Mapping[str, Experience] = field(default_factory=dict, kw_only=True)
    """Of those modules an experience without steps: what their agents are to act on."""
    over: Any = field(default=None, kw_only=True)
    """Where episodes of the environments ended, shape (steps, num_envs)."""

    def ended(self) -> Any:
        """Where episodes of the environments ended, shape (steps, num_envs)."""
        return self.over

    def absorb_into(self, normalization: Any) -> None:
        """Update the running statistics of each module."""
        for module_id, own in self.by_module.items():
            own.absorb_into(normalization.by_module[module_id])


class ModuleFeeds(OpenFeed):
    """One feed of a run for each module that is trained."""

    def __init__(self, by_module: Mapping[str, OpenFeed]) -> None:
        self.by_module = dict(by_module)
        self.steps_per_collect = max(one.steps_per_collect for one in by_module.values())
        self.on_policy = any(one.on_policy for one in by_module.values())
        self.sum: Callable[[Sequence[float]], Sequence[float]] | None = None
        """Adds numbers up over the learners of a run, where there are several."""
        self.learners = 1

    def take(self, experience: Experience, step: int) -> Iterator[Work]:
        """The updates of all modules; what has the same passes and minibatches is one update.

        Of several learners, all update the same modules: those that each has a batch for.
        """
        assert isinstance(experience, ModuleExperience)
        waiting = {
            module_id: iter(self.by_module[module_id].take(own, step))
            for module_id, own in experience.by_module.items()
            if module_id in self.by_module
        }
        while found := self._of_all(self._next(waiting)):
            together: dict[tuple[int, int], dict[str, Work]] = {}
            for module_id, work in found.items():
                together.setdefault((work.num_iters, work.minibatch_size), {})[module_id] = work
            for (num_iters, minibatch_size), works in together.items():
                first = next(iter(works.values()))
                yield Work(first.batch, num_iters, minibatch_size, by_module=works)

    def _next(self, waiting: Mapping[str, Iterator[Work]]) -> dict[str, Work]:
        """The next work of each module that has more."""
        works = {module_id: next(others, None) for module_id, others in waiting.items()}
        return {module_id: work for module_id, work in works.items() if work is not None}

    def _of_all(self, found: dict[str, Work]) -> dict[str, Work]:
        """What every learner has a batch for, so that their gradients can be averaged."""
        if self.sum is None:
            return found
        counts = self.sum([float(module_id in found) for module_id in self.by_module])
        return {
            module_id: found[module_id]
            for module_id, count in zip(self.by_module, counts, strict=True)
            if count == self.learners
        }

    def learned(self, work: Work, rows: Mapping[str, Any]) -> None:
        """Called after an update with the per-row values of each module."""
        for module_id, own in (work.by_module or {}).items():
            self.by_module[module_id].learned(own, rows.get(module_id, {}))

    def describe(self) -> str:
        """What the feeds store, one after the other."""
        told = {name: one.describe() for name, one in self.by_module.items()}
        return "; ".join(f"{name}: {text}" for name, text in told.items() if text)

    def get_state(self) -> dict[str, Any]:
        """All that the next batches depend on, by module."""
        return {name: one.get_state() for name, one in self.by_module.items()}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        for name, one in self.by_module.items():
            one.set_state(saved[name])
