"""The optimizers of a learner, each known by its module and its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from rlplug.config.schedule import Schedule, ScheduledValue
from rlplug.errors import PluginError, did_you_mean
from rlplug.learner.results import labelled
from rlplug.optim.forms import SchedulerPlan
from rlplug.optim.schedulers import SchedulerRun

__all__ = ["Optimizers", "Registered", "set_rate"]


class Registered:
    """One optimizer with its parameters, its place in a cycle and its schedulers."""

    __slots__ = (
        "acted",
        "burst",
        "module_id",
        "name",
        "optimizer",
        "params",
        "plugin",
        "rates",
        "scheduler",
        "unanswered",
    )

    def __init__(self, module_id: str, name: str, plugin: str, optimizer: Optimizer) -> None:
        self.module_id = module_id
        self.name = name
        self.plugin = plugin
        self.optimizer = optimizer
        self.params: list[nn.Parameter] = [
            param for group in optimizer.param_groups for param in group["params"]
        ]
        self.burst = 0
        self.rates: list[tuple[dict[str, Any], ScheduledValue]] = _followed(optimizer)
        self.scheduler: SchedulerRun | None = None
        self.acted = False
        """Whether it stepped since its scheduler last heard of an epoch."""
        self.unanswered = 0
        """Minibatches it was ready for without ever having got a gradient; -1 once it has."""

    @property
    def learning_rate(self) -> float:
        """The rate of its first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def rate_label(self) -> str:
        """Under what name its rate is reported: that of its lr_scheduler_config, or its own."""
        given = "" if self.scheduler is None else self.scheduler.plan.name
        return f"learning_rate/{given}" if given else labelled("learning_rate", self.name)

    def at_step(self, step: int) -> None:
        """Follow schedules over environment steps, where there are any."""
        for group, rate in self.rates:
            group["lr"] = rate.at(step)


class Optimizers:
    """A registry keyed by module id and optimizer name; a second of the same key is refused."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Registered] = {}
        self._holders: dict[int, Registered] = {}

    def __iter__(self) -> Iterator[Registered]:
        return iter(self._known.values())

    def add(self, one: Registered, scheduler: SchedulerPlan | None = None) -> None:
        """Take an optimizer in; none of its parameters may be in another one."""
        key = (one.module_id, one.name)
        if key in self._known:
            raise PluginError(
                f"module {one.module_id!r} has an optimizer {one.name!r} already.",
                "give each optimizer of a module a name of its own",
            )
        for param in one.params:
            other = self._holders.get(id(param))
            if other is not None:
                raise PluginError(
                    f"a parameter of shape {tuple(param.shape)} is in two optimizers: "
                    f"{other.name!r} of module {other.module_id!r} and "
                    f"{one.name!r} of module {one.module_id!r}.",
                    "give each parameter to one optimizer",
                )
        if scheduler is not None:
            one.scheduler = SchedulerRun(scheduler)
        self._known[key] = one
        self._holders.update((id(param), one) for param in one.params)

    def remove(self, module_id: str) -> None:
        """Forget all optimizers of a module."""
        for one in self.of(module_id):
            del self._known[module_id, one.name]
            for param in one.params:
                self._holders.pop(id(param), None)

    def of(self, module_id: str) -> list[Registered]:
        """The optimizers of a module, in the order in which they were registered."""
        return [one for (owner, _), one in self._known.items() if owner == module_id]

    def get(self, module_id: str, name: str) -> Registered:
        """One optimizer; an unknown name is an error that says which there are."""
        found = self._known.get((module_id, name))
        if found is not None:
            return found
        names = [one.name for one in self.of(module_id)]
        raise PluginError(
            f"module {module_id!r} has no optimizer {name!r}. "
            f"{did_you_mean(name, names, sentence=True)}".rstrip(),
            f"it has: {', '.join(names) or 'none'}",
        )


def set_rate(one: Registered, value: float | Schedule | Sequence[Sequence[float]] | None) -> None:
    """Give an optimizer a learning rate, or a schedule of it over environment steps."""
    if value is None:
        return
    groups = one.optimizer.param_groups
    if isinstance(value, int | float):
        for group in groups:
            group["lr"] = value
    else:
        schedule = value if isinstance(value, Schedule) else Schedule(value)
        one.rates = [(group, ScheduledValue(schedule.at(0), schedule)) for group in groups]
    if isinstance(value, ScheduledValue):
        one.rates = _followed(one.optimizer)


def _followed(optimizer: Optimizer) -> list[tuple[dict[str, Any], ScheduledValue]]:
    """The groups whose rate came from a schedule; they hold plain numbers from here on."""
    found = [
        (group, group["lr"])
        for group in optimizer.param_groups
        if isinstance(group["lr"], ScheduledValue)
    ]
    for group, rate in found:
        group["lr"] = float(rate)
    return found
