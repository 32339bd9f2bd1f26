"""How inference batches are formed of the environments that are ready, and what they were like."""

from __future__ import annotations

from typing import Any

import attrs
import numpy

__all__ = ["BatchStats", "Batching"]


@attrs.frozen(kw_only=True)
class Batching:
    """Limits of inference batches."""

    min_batch_size: int = 1
    """Fewer environments are not acted for, unless no more will be ready."""
    max_batch_size: int = 0
    """The most environments to act for at once; 0: all."""
    max_wait_time: float = 0.0
    """Seconds to wait for more environments once there are enough."""
    force_sync: bool = False
    """Act for all environments at once."""
    max_staleness: int = 0
    """The most updates between choosing an action and learning from it; 0: no limit."""

    def least(self, num_envs: int) -> int:
        """The fewest environments to act for at once."""
        return num_envs if self.force_sync else min(self.min_batch_size, num_envs)

    def most(self, num_envs: int) -> int:
        """The most environments to act for at once."""
        return num_envs if self.force_sync else min(self.max_batch_size or num_envs, num_envs)


class BatchStats:
    """Metrics of batches, of the age of weights, and of how busy workers are."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._ages: list[Any] = []
        self._busy = 0.0

    def acted_for(self, size: int) -> None:
        """Count an inference batch."""
        self._sizes.append(size)

    def aged(self, updates: Any) -> None:
        """Count rows by the updates since their actions were chosen."""
        self._ages.append(updates)

    def stepped(self, seconds: Any) -> None:
        """Count the seconds of steps in workers."""
        self._busy += float(seconds.sum())

    def take(self) -> dict[str, float]:
        """Returns the metrics since the last call.

        `batches_of_4` is the share of batches of 4 to 7 environments; those of 1, 2, 8 … likewise.
        """
        metrics: dict[str, float] = {}
        if self._sizes:
            sizes = numpy.array(self._sizes)
            metrics["sampling/batch_size_mean"] = float(sizes.mean())
            metrics["sampling/batch_size_min"] = float(sizes.min())
            metrics["sampling/batch_size_max"] = float(sizes.max())
            bins, counts = numpy.unique(numpy.log2(sizes).astype(int), return_counts=True)
            for power, count in zip(bins.tolist(), counts.tolist(), strict=True):
                metrics[f"sampling/batches_of_{2**power}"] = count / len(sizes)
        if self._ages:
            ages = numpy.concatenate(self._ages)
            if ages.size:
                metrics["sampling/staleness_mean"] = float(ages.mean())
                metrics["sampling/staleness_max"] = float(ages.max())
        metrics["time/worker_seconds"] = self._busy
        self._sizes, self._ages, self._busy = [], [], 0.0
        return metrics
