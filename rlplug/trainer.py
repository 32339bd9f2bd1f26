"""The loop: experience, update, report, until the last step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from rlplug.metrics import MetricWindow
from rlplug.plugin import DEFAULT_MODULE

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.hooks.calls import HookCalls
    from rlplug.learner import Learner
    from rlplug.sampling.tally import Tally

__all__ = ["REPORTS", "Sampler", "Trainer"]

REPORTS = 320
"""Points of a curve: as many as the MLflow UI draws."""


class Sampler(Protocol):
    """Steps environments and yields experience."""

    tally: Tally

    def start(self) -> None:
        """Reset the environments."""

    def collect(self, timestep: int) -> Batch:
        """The next transitions."""

    def close(self) -> None:
        """Close the environments."""


class Trainer:
    """Carries a run from its first to its last environment step."""

    def __init__(
        self,
        calls: HookCalls,
        learner: Learner,
        sampler: Sampler,
        *,
        steps: int,
        stop: Callable[[], None],
    ) -> None:
        self.step = 0
        self.metrics: dict[str, float] = {}
        self._calls = calls
        self._learner = learner
        self._sampler = sampler
        self._steps = steps
        self._stop = stop
        self._window = MetricWindow()
        self._updates = 0

    def run(self) -> None:
        """Train; `stop` is called after every update and may end the run by raising."""
        self._started = self._reported = time.perf_counter()
        self._reported_step = 0
        grid = self._grid()
        due = next(grid)
        told = self._calls.implements("update_finished")
        collect, update, add = self._sampler.collect, self._learner.update, self._window.add
        while self.step < self._steps:
            batch = collect(self.step)
            if not batch.rows:
                continue
            self.step += batch.rows
            results = update({DEFAULT_MODULE: batch}, timestep=self.step)
            self._updates += 1
            add(results)
            if told:
                self._calls.update_finished(self.step, self._updates, results, self._learner)
            if self.step >= due:
                self.report()
                due = next(point for point in grid if point > self.step or point >= self._steps)
            self._stop()

    def report(self) -> None:
        """Tell what has happened since the last report, if anything has."""
        if self.step == self._reported_step:
            return
        now = time.perf_counter()
        seconds, steps = now - self._reported, self.step - self._reported_step
        metrics = {
            **self._sampler.tally.take(),
            **self._window.take(),
            "time/steps_per_second": steps / seconds if seconds else 0.0,
            "time/seconds": now - self._started,
            "time/updates": float(self._updates),
        }
        self._reported, self._reported_step = now, self.step
        self.metrics.update(metrics)
        self._calls.metrics_reported(self.step, metrics)

    def _grid(self) -> Iterator[int]:
        """The steps at which metrics are due: the same for every seed of a run."""
        cells = min(REPORTS, self._steps)
        for cell in range(1, cells + 1):
            yield -(-self._steps * cell // cells)
        while True:
            yield self._steps
