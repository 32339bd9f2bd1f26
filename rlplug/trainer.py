"""The training loop: collect, update, evaluate, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rlplug.metrics import MetricWindow, TimeSplit
from rlplug.plugin import DEFAULT_MODULE

if TYPE_CHECKING:
    from rlplug.feeds import Experience, OpenFeed, Work
    from rlplug.hooks.calls import HookCalls
    from rlplug.learner import Learner


REPORTS = 320
"""Reports per run: as many points as the MLflow UI draws of a curve."""


class Sampler(Protocol):
    """Steps environments and returns experience."""

    version: int
    """Updates of the weights so far: the trainer sets it before a collection."""

    @property
    def roster(self) -> Any:
        """Who may play in the league of the run; None without one."""

    @property
    def step_seconds(self) -> float:
        """Seconds that the environments took for their steps."""

    def start(self, seed: int | None = None) -> None:
        """Reset the environments, from a seed of their own under `seed`, or the run's."""

    def get_state(self, *, environments: bool) -> dict[str, Any]:
        """All that the next collection depends on."""

    def set_state(self, saved: Mapping[str, Any], *, seed: int) -> str:
        """Restore a state; returns why environments were reset, from `seed`, or nothing."""

    def collect(self, timestep: int) -> Experience:
        """Take the next steps."""

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes and of sampling since the last call."""

    def close(self) -> None:
        """Close the environments."""


class PeriodicTasks(Protocol):
    """What happens between updates at certain steps of a run."""

    due: int
    """The next step at which `reached` must be called; the trainer may bring it forward."""

    @property
    def evaluate_seconds(self) -> float:
        """Seconds that evaluations and their videos took."""

    def reached(self, step: int, metrics: MutableMapping[str, float]) -> str:
        """Do what is due, add its metrics; returns why the run should end, or an empty string."""

    def finish(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """Do what is due at the end of the run."""


class Profiler(Protocol):
    """Profiles iterations of the loop."""

    def start(self, updates: int) -> None:
        """Begin, after so many updates."""

    def collected(self, step: int, updates: int) -> None:
        """After a collection and its updates, with the steps and updates of the run so far."""


class Limits(Protocol):
    """Ends a run before its last step; an empty reason is none."""

    is_counting: bool
    """Whether `collected` and `reached` must be called."""

    def collected(self, experience: Experience) -> None:
        """Count a collection."""

    def reached(self, updates: int, seconds: float) -> str:
        """Before a collection, with the updates and the seconds of the run so far."""

    def reported(self, metrics: Mapping[str, float]) -> str:
        """After a report."""


class Trainer:
    """Trains from the first to the last environment step of a run."""

    def __init__(
        self,
        calls: HookCalls,
        learner: Learner,
        sampler: Sampler,
        feed: OpenFeed,
        *,
        steps: int,
        limits: Limits,
        stop: Callable[[], None],
    ) -> None:
        self.step = 0
        self.metrics: dict[str, float] = {}
        self.periodic: PeriodicTasks | None = None
        self.profiler: Profiler | None = None
        self.stopped = ""
        """Why training was stopped early; empty if it was not."""
        self.nonfinite_updates = 0
        """Updates with gradients that were not finite, on the CPU; elsewhere they are metrics."""
        self._calls = calls
        self._learner = learner
        self._sampler = sampler
        self._feed = feed
        self._steps = steps
        self._limits = limits
        self._stop = stop
        self._window = MetricWindow()
        self._updates = 0
        self._times = TimeSplit()
        self._seconds = 0.0
        """Seconds of training before a resume."""
        self._unreported = 0.0
        """Those of them since the last report."""
        self._started = self._reported = 0.0
        # `report` is also called for runs that fail before their first step.
        self._reported_step = 0
        self._has_update_listeners = calls.implements("update_finished")
        # On other devices the count is there in every update, and reading it would wait for it.
        self._counts_nonfinite = learner.device.type == "cpu"

    def run(self) -> None:
        """Train; `stop` is called after the updates of a collection and may end the run by raising.

        Not between them: a run could not go on from there.
        """
        clock = time.perf_counter
        self._started = clock()
        self._reported = self._started - self._unreported
        due = self._next_report()
        limits = self._limits
        counting = limits.is_counting
        times = self._times
        sampler, profiler = self._sampler, self.profiler
        if profiler is not None:
            profiler.start(self._updates)
        collect, take, absorb = sampler.collect, self._feed.take, sampler.absorb
        periodic = self.periodic
        while True:
            # First: a state is saved between an evaluation and the report that shows it.
            if periodic is not None and self.step >= periodic.due:
                self._reach(periodic)
            if self.step >= due:
                metrics = self.report()
                self._learner.optimizers.metrics_reported(metrics)
                self.stopped = self.stopped or limits.reported(metrics)
                due = self._next_report()
            if counting and not self.stopped and 0 < self.step < self._steps:
                seconds = self._seconds + clock() - self._started
                self.stopped = limits.reached(self._updates, seconds)
            if self.step >= self._steps or self.stopped:
                return
            began = clock()
            sampler.version = self._updates
            experience = collect(self.step)
            collected = clock()
            times.collect += collected - began
            self.step += self._count(experience)
            for work in take(experience, self.step):
                self._update(work)
            absorb()
            times.feed += clock() - collected
            if counting:
                limits.collected(experience)
            if profiler is not None:
                # The time to write a trace counts nowhere.
                began = clock()
                profiler.collected(self.step, self._updates)
                self._reported += clock() - began
            # A signal may ask for a checkpoint.
            self._stop()

    def _count(self, experience: Experience) -> int:
        """The environment steps of a collection."""
        return experience.count

    def _update(self, work: Work) -> None:
        learner, clock, works = self._learner, time.perf_counter, work.by_module
        began = clock()
        results = learner.update(
            {DEFAULT_MODULE: work.batch}
            if works is None
            else {module_id: own.batch for module_id, own in works.items()},
            timestep=self.step,
            num_iters=work.num_iters,
            minibatch_size=work.minibatch_size,
        )
        self._times.update += clock() - began
        rows = learner.rows
        self._feed.learned(work, rows.get(DEFAULT_MODULE, _NOTHING) if works is None else rows)
        self._updates += 1
        self._window.add(results)
        if self._counts_nonfinite and any("nonfinite" in own for own in results.values()):
            self.nonfinite_updates += 1
            if self.periodic is not None:
                # Perhaps the weights are not finite either: that is told at once.
                self.periodic.due = self.step
        if self._has_update_listeners:
            began = clock()
            self._calls.tell("update_finished", self.step, self._updates, results, learner)
            self._times.events += clock() - began

    def _reach(self, periodic: PeriodicTasks) -> None:
        with self._timed(periodic):
            reason = periodic.reached(self.step, self.metrics)
        self.stopped = self.stopped or reason

    @contextmanager
    def _timed(self, periodic: PeriodicTasks) -> Iterator[None]:
        """Count what evaluations took, and saving; the speed of a run is without both."""
        evaluated, began = periodic.evaluate_seconds, time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        evaluated = periodic.evaluate_seconds - evaluated
        self._times.add("evaluate", evaluated)
        self._times.add("track", seconds - evaluated)
        self._reported += seconds

    def finish(self) -> None:
        """The last report, evaluation and checkpoint of a run that was trained to its end."""
        self.report()
        if self.periodic is not None:
            with self._timed(self.periodic):
                self.periodic.finish(self.step, self.metrics)

    def report(self) -> Mapping[str, float]:
        """Report the metrics since the last report, if there were steps, and return them."""
        if self.step == self._reported_step:
            return {}
        now = time.perf_counter()
        seconds, steps = now - self._reported, self.step - self._reported_step
        metrics = {
            **self._sampler.take_metrics(),
            **self._window.take(),
            **self._calls.take_trace(),
            "time/steps_per_second": steps / seconds if seconds else 0.0,
            "time/seconds": self._seconds + now - self._started,
            **self._times.take(self._sampler.step_seconds, self._learner.prepare_seconds),
            "time/updates": float(self._updates),
        }
        self._reported, self._reported_step = now, self.step
        self.metrics.update(metrics)
        self._calls.tell("metrics_reported", self.step, metrics)
        self._times.add("track", time.perf_counter() - now)
        return metrics

    @property
    def time_split(self) -> Mapping[str, float]:
        """Seconds of the run so far by what they were spent on; `TIME_PARTS` says on what."""
        return self._times.total(self._sampler.step_seconds, self._learner.prepare_seconds)

    def get_state(self) -> dict[str, Any]:
        """Counters, and what is not reported yet; `clock` holds all that depends on the time."""
        now = time.perf_counter()
        return {
            "step": self.step,
            "updates": self._updates,
            "reported_step": self._reported_step,
            "nonfinite_updates": self.nonfinite_updates,
            "window": self._window.get_state(),
            "metrics": {name: x for name, x in self.metrics.items() if not _is_time(name)},
            "clock": {
                "seconds": self._seconds + now - self._started,
                "unreported": now - self._reported,
                "times": self._times.get_state(
                    self._sampler.step_seconds, self._learner.prepare_seconds
                ),
                "metrics": {name: x for name, x in self.metrics.items() if _is_time(name)},
            },
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state, before `run`."""
        clock = saved["clock"]
        self.step, self._updates = saved["step"], saved["updates"]
        self._reported_step = saved["reported_step"]
        self.nonfinite_updates = saved.get("nonfinite_updates", 0)
        self._window.set_state(saved["window"])
        self.metrics.update({**saved["metrics"], **clock["metrics"]})
        self._seconds, self._unreported = clock["seconds"], clock["unreported"]
        self._times.set_state(clock["times"])

    def _next_report(self) -> int:
        """The step of the next report, out of a grid that is the same for all seeds."""
        cells = min(REPORTS, self._steps)
        cell = self._reported_step * cells // self._steps + 1
        return min(-(-self._steps * cell // cells), self._steps)


_NOTHING: Mapping[str, Any] = {}


def _is_time(metric: str) -> bool:
    """Whether it differs from run to run: seconds, and norms of steps that are not saved."""
    return metric.startswith(("time/", "hooks/"))
