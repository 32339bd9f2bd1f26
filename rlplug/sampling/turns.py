"""Which environments step, which are ready to be acted for, and which may bring more rows."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

from rlplug.sampling.batching import Batching

__all__ = ["Envs", "Turns"]

Envs: TypeAlias = NDArray[numpy.int64]


class Turns:
    """The environments of a collection, some of which step while others are acted for.

    A collection has `steps` rows of each environment or, with `count`, about so many of whichever
    bring them, at most `steps` of each. With `ahead`, environments may also begin steps for the
    next collection.
    """

    def __init__(
        self, num_envs: int, batching: Batching, *, steps: int, count: int = 0, ahead: bool = False
    ) -> None:
        self.times: Envs = numpy.zeros(num_envs, numpy.int64)
        """Rows of each environment in the current collection."""
        self.ready: list[int] = []
        """Environments to act for, in the order in which they became ready."""
        self.stepping = numpy.zeros(num_envs, bool)
        self.versions: Envs = numpy.zeros(num_envs, numpy.int64)
        """The updates that the weights had seen that acted last."""
        self._num_envs, self._batching = num_envs, batching
        self._steps, self._count, self._ahead = steps, count, ahead
        self._version = self._last_version = 0

    @property
    def taken(self) -> int:
        """Rows of the current collection."""
        return int(self.times.sum())

    def start(self) -> None:
        """All were reset: none steps, and all are to be acted for."""
        self.stepping[:] = False
        self.ready = list(range(self._num_envs))

    def collect(self, version: int) -> None:
        """Begin a collection with weights of this version."""
        self.times[:] = 0
        self._version = version

    def finish(self) -> None:
        """The collection has ended."""
        self._last_version = self._version

    def acted(self, envs: list[int]) -> None:
        """These environments begin a step."""
        self.ready = [env for env in self.ready if env not in envs]
        self.versions[envs] = self._version
        self.stepping[envs] = True

    def stepped(self, envs: Envs) -> None:
        """These have taken it, which is a row."""
        self.times[envs] += 1
        self.stepping[envs] = False
        self.ready += envs.tolist()

    def lost(self, envs: Envs) -> None:
        """These were reset, whether they stepped or not."""
        self.stepping[envs] = False
        self.ready = [env for env in self.ready if env not in envs] + envs.tolist()

    def is_complete(self) -> bool:
        """Whether the collection has all its rows."""
        if not self._count:
            return bool((self.times >= self._steps).all())
        return self.taken >= self._count and not self._too_old()

    def choose(self) -> list[int]:
        """The environments to act for now, in their order."""
        return sorted(self._may_step()[: self._batching.most(self._num_envs)])

    def are_most_ready(self) -> bool:
        """Whether waiting would add no environment to those to act for."""
        ready = len(self._may_step())
        return ready >= self._batching.most(self._num_envs) or bool(
            ready and not self.stepping.any()
        )

    def are_enough_ready(self) -> bool:
        """Whether so many are ready as must be; all that may be soon, if those are fewer."""
        ready = len(self._may_step())
        soon = int(self.stepping.sum()) + ready
        return ready >= max(min(self._batching.least(self._num_envs), soon), 1)

    def get_state(self) -> dict[str, Any]:
        """All that the next collection depends on."""
        return {
            "ready": self.ready,
            "stepping": self.stepping,
            "versions": self.versions,
            "last_version": self._last_version,
        }

    def set_state(self, saved: dict[str, Any]) -> None:
        """Restore a state."""
        self.ready, self.stepping = saved["ready"], saved["stepping"]
        self.versions, self._last_version = saved["versions"], saved["last_version"]

    def _may_step(self) -> list[int]:
        """Ready environments that may bring more rows."""
        if self._ahead and self.is_complete():
            return self.ready
        return [env for env in self.ready if self.times[env] < self._steps]

    def _too_old(self) -> bool:
        """Whether a step would be too many updates old in the next collection."""
        if not self._batching.max_staleness:
            return False
        next_version = 2 * self._version - self._last_version
        oldest = next_version - self._batching.max_staleness
        return bool((self.stepping & (self.versions < oldest)).any())
