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
        self.needs_closure = isinstance(optimizer, LBFGS)
        """Whether a step evaluates the loss again and again."""
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

    def __str__(self) -> str:
        return f"optimizer {self.name!r} of plugin {self.plugin!r} for module {self.module_id!r}"

    def at_step(self, step: int) -> None:
        """Set scheduled learning rates to their values at an environment step."""
        for index, rate in self.rates:
            # Loading a state makes new groups.
            self.optimizer.param_groups[index]["lr"] = rate.at(step)

    def set_rate(self, value: float | Schedule | Sequence[Sequence[float]]) -> None:
        """Set the learning rate, or a schedule of it over environment steps."""
        groups = self.optimizer.param_groups
        if isinstance(value, float | int | Tensor):
            for group in groups:
                group["lr"] = value
            self.rates = _scheduled_rates(self.optimizer)
            return
        schedule = value if isinstance(value, Schedule) else Schedule(value)
        rate = ScheduledValue(schedule.at(0), schedule)
        self.rates = [(index, rate) for index in range(len(groups))]

    def alternates_with(self, other: RegisteredOptimizer) -> bool:
        """Whether the two are in one cycle, where they never act together."""
        is_one_cycle = (self.module_id, self.plugin) == (other.module_id, other.plugin)
        return is_one_cycle and bool(self.frequency and other.frequency)

    def note_idle(self) -> None:
        """Count a minibatch without a gradient; raise if the optimizer never gets one."""
        if self.idle_minibatches >= 0:
            self.idle_minibatches += 1
            if self.idle_minibatches >= _IDLE_LIMIT:
                raise PluginError(
                    f"{self} got no loss in {_IDLE_LIMIT} minibatches.",
                    "compute a loss from its parameters, or do not make it",
                )

    def step(
        self,
        gradients: list[Tensor],
        skip: bool | Tensor,
        scaler: torch.amp.GradScaler | None,
    ) -> bool:
        """Step unless `skip`; whether it does.

        A tensor is a verdict that stays on the device: the step happens or not without reading it.
        """
        self.idle_minibatches = -1
        if skip is True:
            return False
        try:
            self._step(gradients, skip, scaler)
        except RuntimeError as error:
            if not any(gradient.is_sparse for gradient in gradients):
                raise
            raise PluginError(
                f"{self} cannot step by a sparse gradient: {error}",
                "try: torch.optim.SGD or SparseAdam for such parameters, or "
                "nn.Embedding(…, sparse=False)",
            ) from error
        return True

    def _step(
        self,
        gradients: list[Tensor],
        skip: Literal[False] | Tensor,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        if scaler is not None:
            scaler.step(self.optimizer)
        elif skip is False:
            if not self._adam_checked:
                self._adam_checked = True
                self._adam = FusedAdam.of(self.optimizer)
            with self._scope:
                if self._adam is None or not self._adam.step(gradients):
                    step_alone(self.optimizer)
        else:
            guarded_step(self.optimizer, skip)

    def step_with_closure(self, evaluate: Callable[[], float | None]) -> bool:
        """Step an optimizer that evaluates the loss several times; None: not to be stepped by.

        A step with any such evaluation leaves everything as it was; returns whether it stepped.
        """
        params = [param.detach().clone() for param in self.params]
        state = {param: copy.deepcopy(kept) for param, kept in self.optimizer.state.items()}
        failed = False

        def closure() -> float:
            nonlocal failed
            # After the first failure nothing is worth evaluating: the step is taken back.
            loss = None if failed else evaluate()
            failed = loss is None
            return float("nan") if loss is None else loss

        self.idle_minibatches = -1
        self.optimizer.step(closure)
        if failed:
            with torch.no_grad():
                for param, before in zip(self.params, params, strict=True):
                    param.copy_(before)
            self.optimizer.state.clear()
            self.optimizer.state.update(state)
        return not failed


class Optimizers:
    """A registry by module id and optimizer name.

    A parameter is in one optimizer, or in several that never act together: of one cycle.
    """

    def __init__(self) -> None:
        self._optimizers: dict[tuple[str, str], RegisteredOptimizer] = {}
        self._holders: dict[int, RegisteredOptimizer] = {}

    def __iter__(self) -> Iterator[RegisteredOptimizer]:
        return iter(self._optimizers.values())

    def add(self, added: RegisteredOptimizer, schedulers: Sequence[SchedulerPlan] = ()) -> None:
        """Register an optimizer; none of its parameters may be in another one."""
        key = (added.module_id, added.name)
        if key in self._optimizers:
            raise PluginError(
                f"module {added.module_id!r} has an optimizer {added.name!r} already.",
                "give each optimizer of a module a name of its own",
            )
        for param in added.params:
            other = self._holders.get(id(param))
            if other is not None and not added.alternates_with(other):
                raise PluginError(
                    f"a parameter of shape {tuple(param.shape)} is in two optimizers: "
                    f"{other.name!r} of module {other.module_id!r} and "
                    f"{added.name!r} of module {added.module_id!r}.",
                    "give each parameter to one optimizer, or each optimizer a 'frequency', by "
                    "which they take turns",
                )
        if schedulers and added.rates:
            kind = type(schedulers[0].scheduler).__name__
            raise PluginError(
                f"the learning rate of {added} follows a schedule of environment steps, which "
                f"would undo what {kind} does.",
                "give the option a number, or leave the scheduler out",
            )
        if schedulers:
            added.scheduler = Schedulers(schedulers)
            if added.scheduler.label:
                added.rate_label = f"learning_rate/{added.scheduler.label}"
        for other in self.of(added.module_id):
            if other.rate_label == added.rate_label:
                raise PluginError(
                    f"optimizers {other.name!r} and {added.name!r} of module "
                    f"{added.module_id!r} would both report {added.rate_label!r}.",
                    "give their schedulers, or one of the optimizers, another name",
                )
        self._optimizers[key] = added
        self._holders.update((id(param), added) for param in added.params)

    @property
    def monitored(self) -> set[str]:
        """The metrics that schedulers cannot do without."""
        return {
            run.plan.monitor
            for optimizer in self
            if optimizer.scheduler is not None
            for run in optimizer.scheduler.runs
            if run.plan.strict
        }

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        """Show metrics of the run to the schedulers that monitor them."""
        for optimizer in self:
            if optimizer.scheduler is not None:
                optimizer.scheduler.metrics_reported(metrics)

    def remove(self, module_id: str) -> None:
        """Remove all optimizers of a module."""
        for optimizer in self.of(module_id):
            del self._optimizers[module_id, optimizer.name]
            for param in optimizer.params:
                self._holders.pop(id(param), None)

    def refuse_holding(self, shared: frozenset[int]) -> None:
        """Refuse optimizers of one module that hold what modules share, given by ids."""
        for optimizer in self:
            if optimizer.module_id != ALL_MODULES and any(
                id(param) in shared for param in optimizer.params
            ):
                raise PluginError(
                    f"a new module shares parameters that {optimizer} moves.",
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
        optimizer = self._optimizers.get((module_id, name))
        if optimizer is not None:
            return optimizer
        names = [other.name for other in self.of(module_id)]
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
        for optimizer in optimizers:
            if optimizer.frequency:
                self._cycles.setdefault(optimizer.plugin, []).append(optimizer)
        self.positions = dict.fromkeys(self._cycles, 0)
        """Steps of each plugin's cycle so far."""

    def acting(self) -> list[RegisteredOptimizer]:
        """The optimizers that may act on the next minibatch."""
        if not self._cycles:
            return self.optimizers
        resting = set()
        for plugin, cycle in self._cycles.items():
            position = self.positions[plugin] % sum(one.frequency for one in cycle)
            for optimizer in cycle:
                if not 0 <= position < optimizer.frequency:
                    resting.add(optimizer.name)
                position -= optimizer.frequency
        return [optimizer for optimizer in self.optimizers if optimizer.name not in resting]

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
            made = RegisteredOptimizer(module_id, name, plugin, plan.optimizer)
            made.frequency = plan.frequency
            yield made, plan.schedulers


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
    for optimizer in optimizers:
        if not optimizer.needs_closure:
            continue
        is_alone = len(optimizers) == 1 or all(other.frequency for other in optimizers)
        if shared or not is_alone:
            raise PluginError(
                f"{optimizer} is LBFGS, which must act alone.",
                "give it the module's only optimizer, or a 'frequency' of its own",
            )
        if scaled:
            raise RequestError(
                f"{optimizer} is LBFGS, which cannot work with compute.precision 'fp16'.",
                "try: --set compute.precision=bf16",
            )


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
