"""The optimizers of a learner: registered by module and name, stepped one by one or in a cycle."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Adam, Optimizer

from rlplug.config.schedule import Schedule, ScheduledValue
from rlplug.errors import PluginError, RequestError, did_you_mean
from rlplug.learner.arguments import rate_of
from rlplug.optim.forms import SchedulerPlan, read_forms
from rlplug.optim.schedulers import Schedulers
from rlplug.optim.steps import FusedAdam, OptimizerStep, guarded_step, step_alone
from rlplug.plugin import ALL_MODULES

__all__ = [
    "OptimizerCycle",
    "Optimizers",
    "RegisteredOptimizer",
    "check_lbfgs",
    "default_optimizer",
    "labelled",
    "optimizers_from",
    "without_effect",
]

_IDLE_LIMIT = 1000


class RegisteredOptimizer:
    """One optimizer with its parameters, its frequency in a cycle and its scheduler."""

    def __init__(self, module_id: str, name: str, plugin: str, optimizer: Optimizer) -> None:
        self.module_id = module_id
        self.name = name
        self.plugin = plugin
        self.optimizer = optimizer
        self.params: list[nn.Parameter] = [
            param for group in optimizer.param_groups for param in group["params"]
        ]
        self.frequency = 0
        """Consecutive minibatches it acts on in a cycle; 0 acts on every minibatch."""
        self.rates: list[tuple[int, ScheduledValue]] = _scheduled_rates(optimizer)
        """Which groups of parameters follow which schedule."""
        self.scheduler: Schedulers | None = None
        self.rate_label = labelled("learning_rate", name)
        """The metric name of its learning rate: that of its lr_scheduler_config, or its own."""
        self.stepped_in_epoch = False
        self.idle_minibatches = 0
        """Minibatches without a gradient before the first one; -1 once it got one."""
        self._adam: FusedAdam | None = None
        self._adam_checked = False
        self._scope = OptimizerStep()

    def at_step(self, step: int) -> None:
        """Set scheduled learning rates to their values at an environment step."""
        for index, rate in self.rates:
            # Loading a state makes new groups.
            self.optimizer.param_groups[index]["lr"] = rate.at(step)

    def set_rate(self, value: float | Schedule | Sequence[Sequence[float]] | None) -> None:
        """Set the learning rate, or a schedule of it over environment steps."""
        if value is None:
            return
        found = rate_of(value, f"optimizer {self.name!r} of module {self.module_id!r}")
        groups = self.optimizer.param_groups
        if isinstance(found, Schedule):
            rate = ScheduledValue(found.at(0), found)
            self.rates = [(index, rate) for index in range(len(groups))]
        else:
            for group in groups:
                group["lr"] = found
        if isinstance(found, ScheduledValue):
            self.rates = _scheduled_rates(self.optimizer)

    def is_like(self, other: RegisteredOptimizer) -> bool:
        """Whether another one has the same name, kind and parameters, and the same schedulers."""
        return _form(self) == _form(other)

    def take_over(self, old: RegisteredOptimizer, new: RegisteredOptimizer) -> None:
        """Change what differs between two that were made for this one's parameters."""
        groups = (one.optimizer.param_groups for one in (self, old, new))
        for index, (group, before, after) in enumerate(zip(*groups, strict=True)):
            for name in after.keys() - {"params", "lr", "initial_lr"}:
                if after[name] != before[name]:
                    group[name] = after[name]
            rates = [one.get("initial_lr", one["lr"]) for one in (before, after)]
            if rates[0] != rates[1]:
                self._set_base_rate(index, rates[1])
        self.rates = new.rates

    def _set_base_rate(self, index: int, rate: float) -> None:
        """Set a learning rate, and what PyTorch's schedulers compute others from."""
        group = self.optimizer.param_groups[index]
        base = group.get("initial_lr", group["lr"])
        # What they have made of it so far holds for the new one, too.
        group["lr"] = rate * (group["lr"] / base) if base else rate
        if "initial_lr" in group:
            group["initial_lr"] = rate
        for run in () if self.scheduler is None else self.scheduler.runs:
            scheduler = run.plan.scheduler
            for one in (scheduler, *getattr(scheduler, "_schedulers", ())):
                if hasattr(one, "base_lrs"):
                    one.base_lrs[index] = rate

    def alternates_with(self, other: RegisteredOptimizer) -> bool:
        """Whether the two are in one cycle, where they never act together."""
        cycles = {(one.module_id, one.plugin) for one in (self, other)}
        return len(cycles) == 1 and bool(self.frequency and other.frequency)

    def note_idle(self) -> None:
        """Count a minibatch without a gradient; raise if the optimizer never gets one."""
        if self.idle_minibatches >= 0:
            self.idle_minibatches += 1
            if self.idle_minibatches >= _IDLE_LIMIT:
                raise PluginError(
                    f"optimizer {self.name!r} of plugin {self.plugin!r} for module "
                    f"{self.module_id!r} got no loss in {_IDLE_LIMIT} minibatches.",
                    "compute a loss from its parameters, or do not make it",
                )

    def step(
        self,
        gradients: list[Tensor],
        nonfinite: bool | Tensor,
        scaler: torch.amp.GradScaler | None,
    ) -> bool:
        """Step unless the gradients are `nonfinite`; whether it does.

        A tensor is a verdict that stays on the device: the step happens or not without reading it.
        """
        self.idle_minibatches = -1
        if nonfinite is True:
            return False
        try:
            self._step(gradients, nonfinite, scaler)
        except RuntimeError as error:
            if not any(gradient.is_sparse for gradient in gradients):
                raise
            raise PluginError(
                f"optimizer {self.name!r} of plugin {self.plugin!r} for module "
                f"{self.module_id!r} cannot step by a sparse gradient: {error}",
                "try: torch.optim.SGD or SparseAdam for such parameters, or "
                "nn.Embedding(…, sparse=False)",
            ) from error
        return True

    def _step(
        self,
        gradients: list[Tensor],
        nonfinite: Literal[False] | Tensor,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        if scaler is not None:
            scaler.step(self.optimizer)
        elif nonfinite is False:
            if not self._adam_checked:
                self._adam_checked = True
                self._adam = FusedAdam.of(self.optimizer)
            with self._scope:
                if self._adam is None or not self._adam.step(gradients):
                    step_alone(self.optimizer)
        else:
            guarded_step(self.optimizer, nonfinite)

    def step_with_closure(self, evaluate: Callable[[], float | None]) -> bool:
        """Step an optimizer that evaluates the loss several times; None: not to be stepped by.

        A step with any such evaluation leaves everything as it was; returns whether it stepped.
        """
        params = [param.detach().clone() for param in self.params]
        state = {param: copy.deepcopy(kept) for param, kept in self.optimizer.state.items()}

        def closure() -> float:
            loss = evaluate()
            if loss is None:
                raise _SkippedError
            return loss

        self.idle_minibatches = -1
        try:
            self.optimizer.step(closure)
        except _SkippedError:
            with torch.no_grad():
                for param, before in zip(self.params, params, strict=True):
                    param.copy_(before)
            self.optimizer.state.clear()
            self.optimizer.state.update(state)
            return False
        return True


class _SkippedError(Exception):
    """Raised inside a closure of LBFGS to abort the step."""


class Optimizers:
    """A registry by module id and optimizer name.

    A parameter is in one optimizer, or in several that never act together: of one cycle.
    """

    def __init__(self) -> None:
        self._optimizers: dict[tuple[str, str], RegisteredOptimizer] = {}
        self._holders: dict[int, RegisteredOptimizer] = {}

    def __iter__(self) -> Iterator[RegisteredOptimizer]:
        return iter(self._optimizers.values())

    def add(self, one: RegisteredOptimizer, schedulers: Sequence[SchedulerPlan] = ()) -> None:
        """Register an optimizer; none of its parameters may be in another one."""
        key = (one.module_id, one.name)
        if key in self._optimizers:
            raise PluginError(
                f"module {one.module_id!r} has an optimizer {one.name!r} already.",
                "give each optimizer of a module a name of its own",
            )
        for param in one.params:
            other = self._holders.get(id(param))
            if other is not None and not one.alternates_with(other):
                raise PluginError(
                    f"a parameter of shape {tuple(param.shape)} is in two optimizers: "
                    f"{other.name!r} of module {other.module_id!r} and "
                    f"{one.name!r} of module {one.module_id!r}.",
                    "give each parameter to one optimizer, or each optimizer a 'frequency', by "
                    "which they take turns",
                )
        if schedulers and one.rates:
            kind = type(schedulers[0].scheduler).__name__
            raise PluginError(
                f"the learning rate of optimizer {one.name!r} of module {one.module_id!r} follows "
                f"a schedule of environment steps, which would undo what {kind} does.",
                "give the option a number, or leave the scheduler out",
            )
        if schedulers:
            one.scheduler = Schedulers(schedulers)
            if one.scheduler.label:
                one.rate_label = f"learning_rate/{one.scheduler.label}"
        for other in self.of(one.module_id):
            if other.rate_label == one.rate_label:
                raise PluginError(
                    f"optimizers {other.name!r} and {one.name!r} of module {one.module_id!r} "
                    f"would both report {one.rate_label!r}.",
                    "give their schedulers, or one of the optimizers, another name",
                )
        self._optimizers[key] = one
        self._holders.update((id(param), one) for param in one.params)

    @property
    def monitored(self) -> set[str]:
        """The metrics that schedulers cannot do without."""
        runs = [run for one in self if one.scheduler is not None for run in one.scheduler.runs]
        return {run.plan.monitor for run in runs if run.plan.strict}

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        """Show metrics of the run to the schedulers that monitor them."""
        for one in self:
            if one.scheduler is not None:
                one.scheduler.metrics_reported(metrics)

    def remove(self, module_id: str) -> None:
        """Remove all optimizers of a module."""
        for one in self.of(module_id):
            del self._optimizers[module_id, one.name]
            for param in one.params:
                self._holders.pop(id(param), None)

    def refuse_holding(self, shared: frozenset[int]) -> None:
        """Refuse optimizers of one module that hold what modules share, given by ids."""
        for one in self:
            if one.module_id != ALL_MODULES and any(id(param) in shared for param in one.params):
                raise PluginError(
                    f"a new module shares parameters that optimizer {one.name!r} of module "
                    f"{one.module_id!r} moves.",
                    "build modules that share parameters together, from the start",
                )

    def copy(self) -> Optimizers:
        """A registry of the same optimizers."""
        made = Optimizers()
        made._optimizers, made._holders = dict(self._optimizers), dict(self._holders)
        return made

    def of(self, module_id: str) -> list[RegisteredOptimizer]:
        """The optimizers of a module, in the order in which they were registered."""
        return [one for (owner, _), one in self._optimizers.items() if owner == module_id]

    def get(self, module_id: str, name: str) -> RegisteredOptimizer:
        """One optimizer by its module and its name."""
        found = self._optimizers.get((module_id, name))
        if found is not None:
            return found
        names = [one.name for one in self.of(module_id)]
        raise PluginError(
            f"module {module_id!r} has no optimizer {name!r}. "
            f"{did_you_mean(name, names, sentence=True)}".rstrip(),
            f"it has: {', '.join(names) or 'none'}",
        )


class OptimizerCycle:
    """Which optimizers of a module act on a minibatch: all, or by `frequency` one at a time."""

    def __init__(self, optimizers: Sequence[RegisteredOptimizer]) -> None:
        self.optimizers = list(optimizers)
        self._cycles: dict[str, list[RegisteredOptimizer]] = {}
        for one in optimizers:
            if one.frequency:
                self._cycles.setdefault(one.plugin, []).append(one)
        self.positions = dict.fromkeys(self._cycles, 0)
        """Steps of each plugin's cycle so far."""

    def acting(self) -> list[RegisteredOptimizer]:
        """The optimizers that may act on the next minibatch."""
        if not self._cycles:
            return self.optimizers
        resting = set()
        for plugin, cycle in self._cycles.items():
            position = self.positions[plugin] % sum(one.frequency for one in cycle)
            for one in cycle:
                if not 0 <= position < one.frequency:
                    resting.add(one.name)
                position -= one.frequency
        return [one for one in self.optimizers if one.name not in resting]

    def advance(self, plugins: Collection[str]) -> None:
        """Count one step of these plugins."""
        for plugin in self.positions:
            self.positions[plugin] += plugin in plugins


def optimizers_from(
    answers: Mapping[str, Any], module_id: str, algorithm: str
) -> Iterator[tuple[RegisteredOptimizer, tuple[SchedulerPlan, ...]]]:
    """The optimizers in each plugin's answer to `configure_optimizers_for_module`.

    Those of add-ons bear the add-on's name.
    """
    for plugin, answer in answers.items():
        for plan in read_forms(answer, f"configure_optimizers_for_module of plugin {plugin!r}"):
            name = plan.name
            if plugin != algorithm:
                name = plugin if name == "default" else f"{plugin}.{name}"
            one = RegisteredOptimizer(module_id, name, plugin, plan.optimizer)
            one.frequency = plan.frequency
            yield one, plan.schedulers


def default_optimizer(config: Any, algorithm: str, params: list[nn.Parameter]) -> Adam:
    """Adam at the algorithm's `learning_rate`."""
    rate = getattr(config, "learning_rate", None)
    if rate is None:
        raise PluginError(
            f"algorithm {algorithm!r} has parameters but neither an option 'learning_rate' "
            "nor the hook 'configure_optimizers_for_module'.",
            "add one of them; the hook may return None",
        )
    return Adam(params, lr=rate, fused=params[0].device.type in ("cpu", "cuda"))


def check_lbfgs(optimizers: Sequence[RegisteredOptimizer], *, shared: bool, scaled: bool) -> None:
    """Refuse LBFGS, which evaluates a loss again and again, where anything else moves meanwhile."""
    for one in optimizers:
        if not isinstance(one.optimizer, LBFGS):
            continue
        who = f"optimizer {one.name!r} of module {one.module_id!r} is LBFGS"
        others = [other for other in optimizers if other is not one]
        if shared or (others and not all(other.frequency for other in optimizers)):
            raise PluginError(
                f"{who}, which must act alone.",
                "give it the module's only optimizer, or a 'frequency' of its own",
            )
        if scaled:
            raise RequestError(f"{who}, which cannot work with compute.precision 'fp16'.")


def without_effect(name: str) -> PluginError:
    """The error of an optimizer for all modules where no two share anything."""
    return PluginError(
        f"optimizer {name!r} is registered under {ALL_MODULES!r}, but no two modules share a "
        "parameter: it would never step.",
        "register it under the id of the module that holds its parameters",
    )


@cache
def labelled(metric: str, optimizer: str) -> str:
    """`learning_rate`, or `learning_rate/actor` where the optimizer has a name."""
    return metric if optimizer == "default" else f"{metric}/{optimizer}"


def _form(one: RegisteredOptimizer) -> tuple[Any, ...]:
    groups = [[id(param) for param in group["params"]] for group in one.optimizer.param_groups]
    runs = [] if one.scheduler is None else one.scheduler.runs
    schedulers = [type(run.plan.scheduler) for run in runs]
    return one.name, type(one.optimizer), groups, one.frequency, schedulers


def _scheduled_rates(optimizer: Optimizer) -> list[tuple[int, ScheduledValue]]:
    """The groups whose rate comes from a schedule; they hold plain numbers from here on."""
    found = [
        (index, group["lr"])
        for index, group in enumerate(optimizer.param_groups)
        if isinstance(group["lr"], ScheduledValue)
    ]
    for index, rate in found:
        optimizer.param_groups[index]["lr"] = float(rate)
    return found
