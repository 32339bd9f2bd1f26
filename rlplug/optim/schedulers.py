"""Learning-rate schedulers at work: when each moves, and on what metric."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch.optim.lr_scheduler import OneCycleLR

from rlplug.errors import RunFailedError, did_you_mean
from rlplug.optim.forms import SchedulerPlan

__all__ = ["SchedulerRun", "Schedulers"]

_AREAS = "eval", "rollout", "train", "time", "sampling", "hooks", "league", "data"
_OF_THE_RUN = tuple(f"{area}/" for area in _AREAS)
_OF_EPISODES = (
    "rollout/return_mean",
    "rollout/length_mean",
    "rollout/regret_mean",
    "rollout/regret_total",
)
"""Metrics of the run that come when the first episode has ended."""


class Schedulers:
    """All schedulers of one optimizer, in order."""

    def __init__(self, plans: Sequence[SchedulerPlan]) -> None:
        self.runs = [SchedulerRun(plan) for plan in plans]

    @property
    def label(self) -> str:
        """The name under which the learning rate is reported; empty if none was given."""
        return next((run.plan.name for run in self.runs if run.plan.name), "")

    def stepped(self, metrics: Mapping[str, Any]) -> None:
        """The optimizer made one step."""
        for run in self.runs:
            run.stepped(metrics)

    def epoch_ended(self, metrics: Mapping[str, Any]) -> None:
        """One pass over the batch is over."""
        for run in self.runs:
            run.epoch_ended(metrics)

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        """The run reported metrics."""
        for run in self.runs:
            run.metrics_reported(metrics)

    def state_dict(self) -> dict[str, Any]:
        """Where they stand."""
        return {"schedulers": [run.state_dict() for run in self.runs]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        # States of 0.1 are that of the one scheduler there was.
        for run, saved in zip(self.runs, state.get("schedulers", [state]), strict=True):
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

    def stepped(self, metrics: Mapping[str, Any]) -> None:
        """The optimizer made one step."""
        if self.plan.interval == "step":
            self._pass(metrics)

    def epoch_ended(self, metrics: Mapping[str, Any]) -> None:
        """One pass over the batch is over."""
        if self.plan.interval == "epoch":
            self._pass(metrics)

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        """The run reported metrics."""
        wanted = self.plan.monitor
        if wanted in metrics:
            self.reported, self._known = float(metrics[wanted]), True
        elif not self._known and wanted.startswith(_OF_THE_RUN):
            if wanted in _OF_EPISODES and "rollout/return_mean" not in metrics:
                return
            area = wanted.partition("/")[0] + "/"
            if beside := {name for name in metrics if name.startswith(area)}:
                self._known = not self.plan.strict
                self._missing(beside, "the run")

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        return {
            "passed": self.passed,
            "reported": self.reported,
            "scheduler": self.plan.scheduler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.passed = state["passed"]
        self.reported = state.get("reported")
        self.plan.scheduler.load_state_dict(state["scheduler"])

    def _pass(self, metrics: Mapping[str, Any]) -> None:
        self.passed += 1
        if self.passed % self.plan.every:
            return
        if not self.plan.monitor:
            self._move()
            return
        value = metrics.get(self.plan.monitor)
        if value is None:
            value, self.reported = self.reported, None
        if value is not None:
            self._move(float(value))
        elif not self.plan.monitor.startswith(_OF_THE_RUN):
            self._missing(metrics, "this module")

    def _move(self, *value: float) -> None:
        scheduler = self.plan.scheduler
        try:
            scheduler.step(*value)
        except ValueError as error:
            if not isinstance(scheduler, OneCycleLR):
                raise
            raise RunFailedError(
                f"the scheduler {type(scheduler).__name__} is past its end: {error}.",
                "give it 'total_steps' for all steps that it will be told of, or another scheduler",
            ) from error

    def _missing(self, metrics: Collection[str], whose: str) -> None:
        wanted = self.plan.monitor
        message = f"a scheduler monitors {wanted!r}, which is no metric of {whose}."
        hints = [f"there are: {', '.join(sorted(metrics)) or 'none'}"]
        if guess := did_you_mean(wanted, metrics):
            hints.insert(0, guess)
        if self.plan.strict:
            raise RunFailedError(message, *hints, "or set 'strict': False to go on without it")
        warnings.warn("\n  ".join([message, *hints]), stacklevel=2)
