"""The six forms in which a plugin may hand over its optimizers, brought to one."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

import attrs
from torch.optim import Optimizer

from rlplug.errors import PluginError, did_you_mean
from rlplug.quantities import is_whole_number

__all__ = ["OptimizerPlan", "SchedulerPlan", "read_forms", "read_scheduler"]

_LOG = logging.getLogger("rlplug")

_SINGLE = ("optimizer", "lr_scheduler", "name", "frequency")
_SCHEDULER = ("scheduler", "interval", "frequency", "monitor", "strict", "name")
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
    plans = list(_read(answer, who))
    frequencies = [plan.frequency for plan in plans]
    if any(frequencies) and not all(frequencies):
        raise PluginError(
            f"{who}: some optimizers have a 'frequency' and some have none: {frequencies}.",
            "give it to all of them, or to none",
        )
    schedulers = [id(one.scheduler) for plan in plans for one in plan.schedulers]
    if len(set(schedulers)) < len(schedulers):
        raise PluginError(
            f"{who}: a scheduler is given twice, and would move twice each time.",
            "give each scheduler once",
        )
    return plans


def _read(answer: Any, who: str) -> Iterator[OptimizerPlan]:
    if answer is None:
        return
    if isinstance(answer, Optimizer):
        yield OptimizerPlan(name="default", optimizer=answer)
    elif isinstance(answer, Mapping):
        yield from _read_mapping(answer, who)
    elif _is_two_lists(answer):
        yield from _read_two_lists(answer[0], answer[1], who)
    elif isinstance(answer, Sequence) and not isinstance(answer, str):
        for index, one in enumerate(answer):
            yield _read_one(one, str(index), who)
    else:
        raise PluginError(f"{who} gave {type(answer).__name__}, which is no optimizer.", _ADVICE)


def _read_mapping(answer: Mapping[str, Any], who: str) -> Iterator[OptimizerPlan]:
    if "optimizer" in answer:
        yield _read_one(answer, "default", who)
        return
    for name, one in answer.items():
        yield _read_one(one, name, who)


def _is_two_lists(answer: Any) -> bool:
    return (
        isinstance(answer, tuple | list)
        and len(answer) == 2
        and all(isinstance(part, list) for part in answer)
    )


def _read_two_lists(
    optimizers: list[Any], schedulers: list[Any], who: str
) -> Iterator[OptimizerPlan]:
    waiting = [read_scheduler(one, who) for one in schedulers]
    for index, optimizer in enumerate(optimizers):
        mine = [plan for plan in waiting if plan.scheduler.optimizer is optimizer]
        waiting = [plan for plan in waiting if plan not in mine]
        plan = _read_one(optimizer, "default" if len(optimizers) == 1 else str(index), who)
        yield attrs.evolve(plan, schedulers=(*plan.schedulers, *mine))
    if waiting:
        raise PluginError(
            f"{who}: {len(waiting)} of the schedulers belong to none of the optimizers.",
            "make each scheduler from an optimizer of the first list",
        )


def _read_one(one: Any, name: str, who: str) -> OptimizerPlan:
    _check_text(name, "the name of an optimizer", who)
    if isinstance(one, Optimizer):
        return OptimizerPlan(name=name, optimizer=one)
    if not isinstance(one, Mapping) or not isinstance(one.get("optimizer"), Optimizer):
        raise PluginError(
            f"{who}: {name!r} is {type(one).__name__}, which holds no optimizer.", _ADVICE
        )
    _refuse_unknown(one, _SINGLE, who)
    _check_text(one.get("name", name), "the name of an optimizer", who)
    given = one.get("lr_scheduler")
    several = given if isinstance(given, list | tuple) else [] if given is None else [given]
    schedulers = tuple(read_scheduler(scheduler, who) for scheduler in several)
    for scheduler in schedulers:
        moved = getattr(scheduler.scheduler, "optimizer", one["optimizer"])
        if moved is not one["optimizer"]:
            raise PluginError(
                f"{who}: the scheduler beside optimizer {name!r} was made from another one.",
                "make it from the optimizer that stands beside it",
            )
    return OptimizerPlan(
        name=one.get("name", name),
        optimizer=one["optimizer"],
        schedulers=schedulers,
        frequency=_count(one.get("frequency", 0), "frequency", who) if "frequency" in one else 0,
    )


def read_scheduler(one: Any, who: str) -> SchedulerPlan:
    """The plan of a scheduler or an `lr_scheduler_config`."""
    config: Mapping[str, Any] = one if isinstance(one, Mapping) else {"scheduler": one}
    _refuse_unknown(config, _SCHEDULER, who)
    scheduler = config.get("scheduler")
    is_class = isinstance(scheduler, type)
    if is_class or not (hasattr(scheduler, "step") and hasattr(scheduler, "state_dict")):
        raise PluginError(
            f"{who}: an lr_scheduler_config needs a 'scheduler', found {scheduler!r}.",
            "try: {'scheduler': StepLR(optimizer, 10)}",
        )
    interval = config.get("interval", "epoch")
    if interval not in ("step", "epoch"):
        raise PluginError(f"{who}: interval {interval!r} of a scheduler.", "use 'step' or 'epoch'")
    for key in ("monitor", "name"):
        if config.get(key) is not None:
            _check_text(config[key], f"{key!r} of a scheduler", who, empty=True)
    strict = config.get("strict", True)
    if not isinstance(strict, bool):
        raise PluginError(
            f"{who}: 'strict' of a scheduler must be True or False, found {strict!r}."
        )
    return SchedulerPlan(
        scheduler=scheduler,
        interval=interval,
        every=_count(config.get("frequency", 1), "frequency of a scheduler", who),
        monitor=_monitored(scheduler, config.get("monitor") or "", who),
        strict=strict,
        name=config.get("name") or "",
    )


def _monitored(scheduler: Any, monitor: str, who: str) -> str:
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    if isinstance(scheduler, ReduceLROnPlateau) and not monitor:
        raise PluginError(
            f"{who}: ReduceLROnPlateau needs the name of a metric.",
            "try: {'scheduler': …, 'monitor': 'loss'}",
        )
    if monitor and not _follows_metric(scheduler):
        _LOG.debug(
            "rlplug: %s: %s follows no metric; 'monitor' = %r is ignored.",
            who,
            type(scheduler).__name__,
            monitor,
        )
        return ""
    return monitor


def _follows_metric(scheduler: Any) -> bool:
    """Whether `step` takes a metric; others would take it for the number of an epoch."""
    for kind in type(scheduler).__mro__:
        if "step" not in vars(kind):
            continue
        parameters = [*inspect.signature(vars(kind)["step"]).parameters.values()][1:]
        if parameters and parameters[0].kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            # It hands on what it is given: what that is says the class above it.
            continue
        return bool(parameters) and parameters[0].name != "epoch"
    return False


def _check_text(value: Any, what: str, who: str, *, empty: bool = False) -> None:
    if not isinstance(value, str) or not (value or empty):
        raise PluginError(f"{who}: {what} must be text, found {value!r}.")


def _count(value: Any, what: str, who: str) -> int:
    if not is_whole_number(value) or value < 1:
        raise PluginError(f"{who}: {what} must be a whole number from 1 on, found {value!r}.")
    return int(value)


def _refuse_unknown(config: Mapping[str, Any], known: Sequence[str], who: str) -> None:
    for key in config:
        if key not in known:
            guess = did_you_mean(str(key), known, sentence=True)
            raise PluginError(
                f"{who}: unknown key {key!r} beside an optimizer. {guess}".rstrip(),
                f"known: {', '.join(known)}",
            )
