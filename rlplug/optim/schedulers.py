"""Learning-rate schedulers at work: when each moves, and on what metric."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from rlplug.errors import RunFailedError, did_you_mean
from rlplug.optim.forms import SchedulerPlan

__all__ = ["SchedulerRun"]


class SchedulerRun:
    """A scheduler that is told of steps and epochs and moves when it is due."""

    def __init__(self, plan: SchedulerPlan) -> None:
        self.plan = plan
        self.passed = 0
        """Intervals so far: optimizer steps or epochs, as the plan says."""

    def stepped(self, metrics: Mapping[str, Any]) -> None:
        """The optimizer made one step."""
        if self.plan.interval == "step":
            self._pass(metrics)

    def epoch_ended(self, metrics: Mapping[str, Any]) -> None:
        """One pass over the batch is over."""
        if self.plan.interval == "epoch":
            self._pass(metrics)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        return {"passed": self.passed, "scheduler": self.plan.scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.passed = state["passed"]
        self.plan.scheduler.load_state_dict(state["scheduler"])

    def _pass(self, metrics: Mapping[str, Any]) -> None:
        self.passed += 1
        if self.passed % self.plan.every:
            return
        if not self.plan.monitor:
            self.plan.scheduler.step()
            return
        value = metrics.get(self.plan.monitor)
        if value is None:
            self._missing(metrics)
        else:
            self.plan.scheduler.step(float(value))

    def _missing(self, metrics: Mapping[str, Any]) -> None:
        wanted = self.plan.monitor
        message = f"a scheduler monitors {wanted!r}, which is no metric of this module."
        hints = [f"there are: {', '.join(sorted(metrics)) or 'none'}"]
        if guess := did_you_mean(wanted, metrics):
            hints.insert(0, guess)
        if self.plan.strict:
            raise RunFailedError(message, *hints, "or set 'strict': False to go on without it")
        warnings.warn("\n  ".join([message, *hints]), stacklevel=2)
