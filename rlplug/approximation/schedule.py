"""The learning-rate scheduler of an approximation, which moves after every update."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rlplug.approximation.arguments import shown
from rlplug.errors import RequestError
from rlplug.optim.forms import read_scheduler
from rlplug.optim.schedulers import SchedulerRun

__all__ = ["every_update"]


def every_update(
    scheduler: Any,
    optimizer: Optimizer | None,
    name: str,
    metrics: tuple[str, ...],
) -> SchedulerRun | None:
    """The scheduler, stepped after every update; it can watch `metrics`, if any."""
    if scheduler is None:
        return None
    config = scheduler if isinstance(scheduler, dict) else {"scheduler": scheduler}
    given = config.get("scheduler")
    monitor = {"monitor": "loss"} if isinstance(given, ReduceLROnPlateau) else {}
    who = f"approximation {name!r}"
    if isinstance(given, type):
        raise RequestError(
            f"the scheduler of {who} must be a scheduler, found {shown(given)}.",
            f"make one: {given.__name__}(optimizer, …)",
        )
    plan = read_scheduler({"interval": "step", **monitor, **config}, who)
    if plan.interval == "epoch":
        raise RequestError(
            f"the scheduler of {who} would move after each epoch, and there are none.",
            "leave 'interval' out: it moves after every update",
        )
    if plan.monitor and plan.monitor not in metrics:
        raise RequestError(
            f"the scheduler of {who} monitors {plan.monitor!r}, which it does not know.",
            "use 'monitor': 'loss'"
            if metrics
            else "give it a scheduler that follows no metric, such as StepLR",
        )
    if optimizer is None:
        raise RequestError(
            f"{who} has a scheduler and no optimizer.", "give it the optimizer of the scheduler"
        )
    if getattr(plan.scheduler, "optimizer", optimizer) is not optimizer:
        raise RequestError(
            f"the scheduler of {who} was made from another optimizer.",
            "make it from the optimizer that stands beside it",
        )
    return SchedulerRun(plan)
