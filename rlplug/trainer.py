"""The loop: experience, update, report, until the last step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

from rlplug.metrics import MetricWindow
from rlplug.plugin import DEFAULT_MODULE

if TYPE_CHECKING:
    from rlplug.feeds import Experience, OpenFeed, Work
    from rlplug.hooks.calls import HookCalls
    from rlplug.learner import Learner
    from rlplug.sampling.episode_stats import EpisodeStats

__all__ = ["REPORTS", "Milestones", "Sampler", "Trainer"]

REPORTS = 320
"""Points of a curve: as many as the MLflow UI draws."""


class Sampler(Protocol):
    """Steps environments and yields experience."""

    episode_stats: EpisodeStats

    def start(self) -> None:
        """Reset the environments."""

    def collect(self, timestep: int) -> Experience:
        """What happens in the next steps."""

    def absorb(self) -> None:
        """Let normalisers take in what was collected last."""

    def close(self) -> None:
        """Close the environments."""


class Milestones(Protocol):
    """What happens between updates at certain steps of a run."""

    due: int
    """The step from which on `reached` is to be called."""

    def reached(self, step: int, metrics: MutableMapping[str, float]) -> str:
        """Do what is due, add its metrics; why the run should end, or an empty string."""


class Trainer:
    """Carries a run from its first to its last environment step."""

    def __init__(
        self,
        calls: HookCalls,
        learner: Learner,
        sampler: Sampler,
        feed: OpenFeed,
        *,
        steps: int,
        stop: Callable[[], None],
    ) -> None:
        self.step = 0
        self.metrics: dict[str, float] = {}
        self.milestones: Milestones | None = None
        self.stopped = ""
        """Why a milestone ended the run before its last step; empty if none did."""
        self._calls = calls
        self._learner = learner
        self._sampler = sampler
        self._feed = feed
        self._steps = steps
        self._stop = stop
        self._window = MetricWindow()
        self._updates = 0
        self._sampling = 0.0
        # A run may fail before its first step, and is reported all the same.
        self._reported_step = 0
        self._told = calls.implements("update_finished")

    def run(self) -> None:
        """Train; `stop` is called after every update and may end the run by raising."""
        clock = time.perf_counter
        self._started = self._reported = clock()
        grid = self._grid()
        due = next(grid)
        collect, take, absorb = self._sampler.collect, self._feed.take, self._sampler.absorb
        while self.step < self._steps and not self.stopped:
            began = clock()
            experience = collect(self.step)
            self._sampling += clock() - began
            self.step += experience.count
            for work in take(experience, self.step):
                self._update(work)
                self._stop()
            absorb()
            # Before the report, which shows what an evaluation found.
            if self.milestones is not None and self.step >= self.milestones.due:
                self._reach(self.milestones)
            if self.step >= due:
                self.report()
                due = next(point for point in grid if point > self.step or point >= self._steps)
            self._stop()

    def _update(self, work: Work) -> None:
        learner = self._learner
        results = learner.update(
            {DEFAULT_MODULE: work.batch},
            timestep=self.step,
            num_iters=work.num_iters,
            minibatch_size=work.minibatch_size,
        )
        self._feed.learned(work, learner.rows.get(DEFAULT_MODULE, _NO_ROWS))
        self._updates += 1
        self._window.add(results)
        if self._told:
            self._calls.update_finished(self.step, self._updates, results, learner)

    def _reach(self, milestones: Milestones) -> None:
        began = time.perf_counter()
        self.stopped = milestones.reached(self.step, self.metrics)
        # The speed of a run is that of its steps and updates.
        self._reported += time.perf_counter() - began

    def report(self) -> None:
        """Tell what has happened since the last report, if anything has."""
        if self.step == self._reported_step:
            return
        now = time.perf_counter()
        seconds, steps = now - self._reported, self.step - self._reported_step
        metrics = {
            **self._sampler.episode_stats.take(),
            **self._window.take(),
            "time/steps_per_second": steps / seconds if seconds else 0.0,
            "time/seconds": now - self._started,
            "time/sampling_seconds": self._sampling,
            "time/learning_seconds": seconds - self._sampling,
            "time/updates": float(self._updates),
        }
        self._reported, self._reported_step = now, self.step
        self._sampling = 0.0
        self.metrics.update(metrics)
        self._calls.metrics_reported(self.step, metrics)

    def _grid(self) -> Iterator[int]:
        """The steps at which metrics are due: the same for every seed of a run."""
        cells = min(REPORTS, self._steps)
        for cell in range(1, cells + 1):
            yield -(-self._steps * cell // cells)
        while True:
            yield self._steps


_NO_ROWS: Mapping[str, Any] = {}
