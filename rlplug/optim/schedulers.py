"""Learning-rate schedulers at work: when each moves, and on what metric."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlplug.errors import RunFailedError, did_you_mean
from rlplug.optim.forms import SchedulerPlan

__all__ = ["SchedulerRun", "Schedulers"]

_OF_THE_RUN = "eval/", "rollout/", "train/", "time/", "sampling/", "hooks/", "league/", "data/"


class Schedulers:
    """All schedulers of one optimizer, in order."""

    def __init__(self, plans: Sequence[SchedulerPlan]) -> None:
        self.runs = [SchedulerRun(plan) for plan in plans]

    @property
    def label(self) -> str:
        """The name under which the learning rate is reported; empty if none was given."""
        return next((run.plan.name for run in self.runs if run.plan.name), "")

    def stepped(self, metrics: Mapping[str, Any], *, complete: bool = True) -> None:
        """The optimizer made one step."""
        for run in self.runs:
            run.stepped(metrics, complete=complete)

    def epoch_ended(self, metrics: Mapping[str, Any], *, complete: bool = True) -> None:
        """One pass over the batch is over."""
        for run in self.runs:
            run.epoch_ended(metrics, complete=complete)

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        """The run reported metrics."""
        for run in self.runs:
            run.metrics_reported(metrics)

    def state_dict(self) -> dict[str, Any]:
        """Where they stand."""
        return {"schedulers": [run.state_dict() for run in self.runs]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for run, saved in zip(self.runs, state["schedulers"], strict=True):
            run.load_state_dict(saved)


class SchedulerRun:
    """A scheduler that is told of steps and epochs and moves when it is due.

    One that monitors a metric of the run (`eval/return_mean`) moves when it is due and the metric
    has a new value: its patience counts evaluations, not optimizer steps.
    """

    def __init__(self, plan: SchedulerPlan) -> None:
        self.plan = plan
        self.passed = 0
        """Intervals so far: optimizer steps or epochs, as the plan says."""
        self.reported: float | None = None
        """The new value of a metric of the run; None once the scheduler has seen it."""
        self._known = False
        """Whether the run has ever reported the metric."""

    def stepped(self, metrics: Mapping[str, Any], *, complete: bool = True) -> None:
        """The optimizer made one step; metrics are those of the module.

        Until they are `complete`, what hooks report at the end of an update is not among them.
        """
        if self.plan.interval == "step":
            self._pass(metrics, complete)

    def epoch_ended(self, metrics: Mapping[str, Any], *, complete: bool = True) -> None:
        """One pass over the batch is over."""
        if self.plan.interval == "epoch":
            self._pass(metrics, complete)

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        """The run reported metrics."""
        wanted = self.plan.monitor
        if wanted in metrics:
            self.reported, self._known = float(metrics[wanted]), True
        elif not self._known and wanted.startswith(_OF_THE_RUN):
            area = wanted.partition("/")[0] + "/"
            # Some come when the first episode has ended.
            last = "rollout/return_mean" if area == "rollout/" else area
            if any(name.startswith(last) for name in metrics):
                self._known = not self.plan.strict
                self._missing([name for name in metrics if name.startswith(area)], "the run")

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        return {
            "passed": self.passed,
            "reported": self.reported,
            "scheduler": self.plan.scheduler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.passed, self.reported = state["passed"], state["reported"]
        self.plan.scheduler.load_state_dict(state["scheduler"])

    def _pass(self, metrics: Mapping[str, Any], complete: bool) -> None:
        scheduler, monitor = self.plan.scheduler, self.plan.monitor
        self.passed += 1
        if self.passed % self.plan.every:
            return
        if not monitor:
            scheduler.step()
            return
        value = metrics.get(monitor)
        if value is None:
            value, self.reported = self.reported, None
        if value is not None:
            scheduler.step(float(value))
        elif complete and not monitor.startswith(_OF_THE_RUN):
            self._missing(metrics, "this module")

    def _missing(self, metrics: Collection[str], whose: str) -> None:
        wanted = self.plan.monitor
        guess = did_you_mean(wanted, metrics, sentence=True)
        message = f"a scheduler monitors {wanted!r}, which is no metric of {whose}. {guess}"
        known = f"there are: {', '.join(sorted(metrics)) or 'none'}"
        if self.plan.strict:
            advice = "or set 'strict': False to go on without it"
            raise RunFailedError(message.rstrip(), known, advice)
        warnings.warn(f"{message}\n  {known}", stacklevel=2)
