"""Which environments step, which are ready to be acted for, and which may bring more rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

from rlplug.config.sections import SamplingSection

__all__ = ["Turns"]

Envs: TypeAlias = NDArray[numpy.int64]


class Turns:
    """The environments of a collection, some of which step while others are acted for.

    A collection has `steps` rows of each environment or, with `count`, about so many of whichever
    bring them, at most `steps` of each; `times` has those that each brought. With `ahead`,
    environments may also begin steps for the next collection.
    """

    def __init__(
        self, times: Envs, options: SamplingSection, *, steps: int, count: int, ahead: bool
    ) -> None:
        num = len(times)
        self.ready: list[int] = []
        """Environments to act for, in the order in which they became ready."""
        self.stepping = numpy.zeros(num, bool)
        self.versions: Envs = numpy.zeros(num, numpy.int64)
        """The updates that the weights had seen that acted last."""
        self.sizes: list[int] = []
        """Of the batches since the last report."""
        self.ages: list[Any] = []
        """Updates since the actions of the rows were chosen that came since the last report."""
        self.version = 0
        """Updates of the weights that act."""
        self._least = num if options.force_sync else options.min_batch_size
        """The fewest environments to act for at once, unless no more will be ready."""
        self._most = min(options.max_batch_size or num, num)
        self._longest = options.max_wait_time
        """Seconds to wait for more environments once there are enough."""
        self._max_staleness = options.max_staleness
        """The most updates between choosing an action and learning from it; 0: no limit."""
        self._times = times
        self._steps, self._count, self._ahead = steps, count, ahead
        self._last_version = 0

    def start(self) -> None:
        """All were reset: none steps, and all are to be acted for."""
        self.stepping[:] = False
        self.ready = list(range(len(self._times)))

    def wait(self, receive: Callable[[float | None], None]) -> list[int]:
        """Receive steps until there are environments to act for; none: the collection is complete.

        They are in their order.
        """
        began = 0.0
        while not self.is_complete():
            if self._are_most_ready():
                return self._chosen()
            seconds: float | None = None
            if self._are_enough_ready():
                now = time.monotonic()
                began = began or now
                seconds = began + self._longest - now
                if seconds <= 0:
                    return self._chosen()
            receive(seconds)
        return []

    def ahead(self) -> list[int]:
        """Environments to act for although the collection is complete."""
        return self._chosen() if self._ahead and self._are_enough_ready() else []

    def acted(self, envs: list[int]) -> None:
        """These environments begin a step."""
        self.ready = [env for env in self.ready if env not in envs]
        self.versions[envs] = self.version
        self.stepping[envs] = True
        self.sizes.append(len(envs))

    def stepped(self, envs: Envs) -> None:
        """These have taken it, which is a row."""
        self.stepping[envs] = False
        self.ready += envs.tolist()
        if self._count:
            self.ages.append(self.version - self.versions[envs])

    def finish(self) -> None:
        """The collection has ended."""
        self._last_version = self.version

    def is_complete(self) -> bool:
        """Whether the collection has all its rows."""
        if not self._count:
            return bool((self._times >= self._steps).all())
        return bool(self._times.sum() >= self._count) and not self._too_old()

    def take_metrics(self) -> dict[str, float]:
        """The metrics of batches since the last call.

        `batches_of_4` is the share of batches of 4 to 7 environments; those of 1, 2, 8 … likewise.
        """
        metrics: dict[str, float] = {}
        if self.sizes:
            sizes = numpy.array(self.sizes)
            for kind in ("mean", "min", "max"):
                metrics[f"sampling/batch_size_{kind}"] = float(getattr(sizes, kind)())
            bins, counts = numpy.unique(numpy.log2(sizes).astype(int), return_counts=True)
            for power, count in zip(bins.tolist(), counts.tolist(), strict=True):
                metrics[f"sampling/batches_of_{2**power}"] = count / len(sizes)
        if self.ages:
            ages = numpy.concatenate(self.ages)
            metrics["sampling/staleness_mean"] = float(ages.mean())
            metrics["sampling/staleness_max"] = float(ages.max())
        self.sizes, self.ages = [], []
        return metrics

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

    def _chosen(self) -> list[int]:
        return sorted(self._may_step()[: self._most])

    def _are_most_ready(self) -> bool:
        """Whether waiting would add no environment to those to act for."""
        ready = len(self._may_step())
        return ready >= self._most or bool(ready and not self.stepping.any())

    def _are_enough_ready(self) -> bool:
        """Whether so many are ready as must be; all that may be soon, if those are fewer."""
        ready = len(self._may_step())
        soon = int(self.stepping.sum()) + ready
        return ready >= max(min(self._least, soon), 1)

    def _may_step(self) -> list[int]:
        """Ready environments that may bring more rows."""
        if self._ahead and self.is_complete():
            return self.ready
        return [env for env in self.ready if self._times[env] < self._steps]

    def _too_old(self) -> bool:
        """Whether a step would be too many updates old in the next collection."""
        if not self._max_staleness:
            return False
        next_version = 2 * self.version - self._last_version
        oldest = next_version - self._max_staleness
        return bool((self.stepping & (self.versions < oldest)).any())
