"""The six forms in which a plugin may hand over its optimizers, brought to one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rlplug.errors import PluginError, did_you_mean
from rlplug.quantities import is_whole_number

__all__ = ["OptimizerPlan", "SchedulerPlan", "read_forms", "read_scheduler"]

_SINGLE = ("optimizer", "lr_scheduler", "name", "frequency")
_SCHEDULER = ("scheduler", "interval", "frequency", "monitor", "strict", "name")
_NO_METRIC: tuple[list[str], ...] = ([], ["epoch"], ["args"])
"""First arguments of schedulers that follow no metric; some hand on what they are given."""
_ADVICE = (
    "give an optimizer, a list of them, a mapping from names, two lists (optimizers and "
    "schedulers), a dict with 'optimizer', a tuple of such dicts with 'frequency', or None"
)


@attrs.frozen(kw_only=True)
class SchedulerPlan:
    """A learning-rate scheduler and when it moves."""

    scheduler: Any
    interval: str = "epoch"
    """`step`, of the optimizer, or `epoch`: one pass over the batch that an update was given.

    For a rollout that is each of its `n_epochs`; in a stream and for a replay buffer each update is
    one epoch.
    """
    every: int = 1
    """Moves once in so many intervals (`frequency` of an lr_scheduler_config)."""
    monitor: str = ""
    """A metric of the module (`loss`), or one of the run (`eval/return_mean`)."""
    strict: bool = True
    name: str = ""


@attrs.frozen(kw_only=True)
class OptimizerPlan:
    """One optimizer under its name."""

    name: str
    optimizer: Optimizer
    schedulers: tuple[SchedulerPlan, ...] = ()
    frequency: int = 0
    """Acts alone for so many minibatches in its turn (`frequency` of the tuple form); 0: always."""


def read_forms(answer: Any, who: str) -> list[OptimizerPlan]:
    """The plans of any of the six forms; `who` is named in errors."""
    if answer is None:
        return []
    if isinstance(answer, Optimizer) or (isinstance(answer, Mapping) and "optimizer" in answer):
        plans = [_read_one(answer, "default", who)]
    elif isinstance(answer, Mapping):
        plans = [_read_one(given, name, who) for name, given in answer.items()]
    elif not isinstance(answer, Sequence) or isinstance(answer, str):
        raise PluginError(f"{who} gave {type(answer).__name__}, which is no optimizer.", _ADVICE)
    elif len(answer) == 2 and all(isinstance(part, list) for part in answer):
        optimizers, schedulers = answer
        plans = _read_two_lists(optimizers, schedulers, who)
    else:
        plans = [_read_one(given, str(index), who) for index, given in enumerate(answer)]
    frequencies = [plan.frequency for plan in plans]
    if any(frequencies) and not all(frequencies):
        raise PluginError(
            f"{who}: some optimizers have a 'frequency' and some have none: {frequencies}.",
            "give it to all of them, or to none",
        )
    moved = [id(scheduler.scheduler) for plan in plans for scheduler in plan.schedulers]
    if len(set(moved)) < len(moved):
        raise PluginError(
            f"{who}: a scheduler is given twice, and would move twice each time.",
            "give each scheduler once",
        )
    return plans


def read_scheduler(given: Any, who: str) -> SchedulerPlan:
    """The plan of a scheduler or an `lr_scheduler_config`."""
    config: Mapping[str, Any] = given if isinstance(given, Mapping) else {"scheduler": given}
    _refuse_unknown(config, _SCHEDULER, who)
    scheduler = config.get("scheduler")
    if isinstance(scheduler, type) or not hasattr(scheduler, "step"):
        raise PluginError(
            f"{who}: an lr_scheduler_config needs a 'scheduler', found {scheduler!r}.",
            "try: {'scheduler': StepLR(optimizer, 10)}",
        )
    interval, every = config.get("interval", "epoch"), config.get("frequency", 1)
    _require(interval in ("step", "epoch"), "interval", "'step' or 'epoch'", interval, who)
    _require(_counts(every), "frequency", "a whole number from 1 on", every, who)
    monitor = config.get("monitor") or ""
    if isinstance(scheduler, ReduceLROnPlateau) and not monitor:
        raise PluginError(
            f"{who}: ReduceLROnPlateau needs the name of a metric.",
            "try: {'scheduler': …, 'monitor': 'loss'}",
        )
    return SchedulerPlan(
        scheduler=scheduler,
        interval=interval,
        every=int(every),
        monitor=monitor if _follows_metric(scheduler) else "",
        strict=config.get("strict", True),
        name=config.get("name") or "",
    )


def _read_two_lists(
    optimizers: Sequence[Any], schedulers: Sequence[Any], who: str
) -> list[OptimizerPlan]:
    waiting = [read_scheduler(scheduler, who) for scheduler in schedulers]
    plans = []
    for index, optimizer in enumerate(optimizers):
        name = "default" if len(optimizers) == 1 else str(index)
        made = _read_one(optimizer, name, who)
        own = [plan for plan in waiting if plan.scheduler.optimizer is made.optimizer]
        waiting = [plan for plan in waiting if plan not in own]
        plans.append(attrs.evolve(made, schedulers=(*made.schedulers, *own)))
    if waiting:
        raise PluginError(
            f"{who}: {len(waiting)} of the schedulers belong to none of the optimizers.",
            "make each scheduler from an optimizer of the first list",
        )
    return plans


def _read_one(given: Any, name: str, who: str) -> OptimizerPlan:
    config: Mapping[str, Any] = given if isinstance(given, Mapping) else {"optimizer": given}
    optimizer = config.get("optimizer")
    if not isinstance(optimizer, Optimizer):
        kind = type(given).__name__
        raise PluginError(f"{who}: {name!r} is {kind}, which holds no optimizer.", _ADVICE)
    _refuse_unknown(config, _SINGLE, who)
    name, frequency = config.get("name", name), config.get("frequency", 0)
    _require(isinstance(name, str) and name, "the name of an optimizer", "text", name, who)
    _require(_counts(frequency or 1), "frequency", "a whole number from 1 on", frequency, who)
    several = config.get("lr_scheduler") or ()
    if not isinstance(several, list | tuple):
        several = [several]
    schedulers = tuple(read_scheduler(scheduler, who) for scheduler in several)
    for scheduler in schedulers:
        if getattr(scheduler.scheduler, "optimizer", optimizer) is not optimizer:
            raise PluginError(
                f"{who}: the scheduler beside optimizer {name!r} was made from another one.",
                "make it from the optimizer that stands beside it",
            )
    return OptimizerPlan(
        name=name, optimizer=optimizer, schedulers=schedulers, frequency=int(frequency)
    )


def _follows_metric(scheduler: Any) -> bool:
    """Whether `step` takes a metric; others would take it for the number of an epoch."""
    arguments = list(inspect.signature(scheduler.step).parameters)
    return isinstance(scheduler, ReduceLROnPlateau) or arguments[:1] not in _NO_METRIC


def _counts(value: Any) -> bool:
    return is_whole_number(value) and value >= 1


def _require(holds: object, what: str, wanted: str, value: Any, who: str) -> None:
    if not holds:
        raise PluginError(f"{who}: {what} must be {wanted}, found {value!r}.")


def _refuse_unknown(config: Mapping[str, Any], known: Sequence[str], who: str) -> None:
    for key in config:
        if key not in known:
            guess = did_you_mean(str(key), known, sentence=True)
            raise PluginError(
                f"{who}: unknown key {key!r} beside an optimizer. {guess}".rstrip(),
                f"known: {', '.join(known)}",
            )
