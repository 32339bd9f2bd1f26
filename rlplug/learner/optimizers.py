"""The optimizers of a learner: registered by module and name, stepped one by one or in a cycle."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Adam, Optimizer

from rlplug.config.schedule import ScheduledValue
from rlplug.errors import PluginError, RequestError
from rlplug.optim.forms import SchedulerPlan
from rlplug.optim.schedulers import Schedulers
from rlplug.optim.steps import FusedAdam, OptimizerStep, guarded_step, step_alone


class RegisteredOptimizer:
    """One optimizer with its parameters, its frequency in a cycle and its schedulers."""

    def __init__(
        self,
        module_id: str,
        name: str,
        plugin: str,
        optimizer: Optimizer,
        frequency: int = 0,
        schedulers: Sequence[SchedulerPlan] = (),
    ) -> None:
        self.module_id = module_id
        self.name = name
        self.plugin = plugin
        self.optimizer = optimizer
        groups = optimizer.param_groups
        self.params: list[nn.Parameter] = [param for group in groups for param in group["params"]]
        self.needs_closure = isinstance(optimizer, LBFGS)
        """Whether a step evaluates the loss again and again."""
        self.frequency = frequency
        """Consecutive minibatches it acts on in a cycle; 0 acts on every minibatch."""
        self.rates: list[tuple[int, ScheduledValue]] = []
        """Which groups of parameters follow which schedule; they hold plain numbers themselves."""
        for index, group in enumerate(groups):
            if isinstance(group["lr"], ScheduledValue):
                self.rates.append((index, group["lr"]))
                group["lr"] = float(group["lr"])
        self.scheduler = Schedulers(schedulers) if schedulers else None
        label = "" if self.scheduler is None else self.scheduler.label
        self.rate_label = labelled("learning_rate", label or name)
        """The metric name of its learning rate: that of its lr_scheduler_config, or its own."""
        self.stepped_in_epoch = False
        self._scope = OptimizerStep()

    def __str__(self) -> str:
        return f"optimizer {self.name!r} of plugin {self.plugin!r} for module {self.module_id!r}"

    @cached_property
    def _adam(self) -> FusedAdam | None:
        """A shorter way to step, where there is one; it is looked for at the first step."""
        return FusedAdam.of(self.optimizer)

    def at_step(self, step: int) -> None:
        """Set scheduled learning rates to their values at an environment step."""
        for index, rate in self.rates:
            # Loading a state makes new groups.
            self.optimizer.param_groups[index]["lr"] = rate.at(step)

    def step(
        self, gradients: list[Tensor], skip: bool | Tensor, scaler: torch.amp.GradScaler | None
    ) -> bool:
        """Step unless `skip`; whether it does.

        A tensor is a verdict that stays on the device: the step happens or not without reading it.
        """
        if skip is True:
            return False
        if scaler is not None:
            scaler.step(self.optimizer)
        elif skip is not False:
            guarded_step(self.optimizer, skip)
        else:
            with self._scope:
                if self._adam is None or not self._adam.step(gradients):
                    step_alone(self.optimizer)
        return True

    def step_with_closure(self, evaluate: Callable[[], float | None]) -> bool:
        """Step an optimizer that evaluates the loss several times; None: not to be stepped by.

        A step with any such evaluation leaves everything as it was; returns whether it stepped.
        """
        before = [param.detach().clone() for param in self.params]
        state = copy.deepcopy(self.optimizer.state_dict())
        failed = False

        def closure() -> float:
            nonlocal failed
            # After the first failure nothing is worth evaluating: the step is taken back.
            loss = None if failed else evaluate()
            failed = loss is None
            return float("nan") if loss is None else loss

        self.optimizer.step(closure)
        if failed:
            with torch.no_grad():
                torch._foreach_copy_(list[Tensor](self.params), before)
            self.optimizer.load_state_dict(state)
        return not failed


class Optimizers:
    """A registry by module id and optimizer name.

    A parameter is in one optimizer, or in several that never act together: of one cycle.
    """

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, str], RegisteredOptimizer] = {}

    def __iter__(self) -> Iterator[RegisteredOptimizer]:
        return iter(self.by_key.values())

    def add(self, added: RegisteredOptimizer) -> None:
        """Register an optimizer, unless it or what it moves has been registered."""
        module_id, name = added.module_id, added.name
        if added.rates and added.scheduler is not None:
            raise PluginError(
                f"the learning rate of {added} follows a schedule of environment steps, which "
                f"would undo what {type(added.scheduler.runs[0].plan.scheduler).__name__} does.",
                "give the option a number, or leave the scheduler out",
            )
        held = {id(param) for param in added.params}
        for other in self:
            alike = (other.module_id, other.plugin) == (module_id, added.plugin)
            takes_turns = alike and other.frequency and added.frequency
            if not takes_turns and not held.isdisjoint(map(id, other.params)):
                raise PluginError(
                    f"a parameter is in two optimizers: {other.name!r} of module "
                    f"{other.module_id!r} and {name!r} of module {module_id!r}.",
                    "give each parameter to one optimizer (what modules share, where module_id is "
                    "rlplug.ALL_MODULES), or each optimizer a 'frequency', by which they take "
                    "turns",
                )
        for other in self.of(module_id):
            if other.name == name or other.rate_label == added.rate_label:
                raise PluginError(
                    f"module {module_id!r} has two optimizers of one name, or both would report "
                    f"{added.rate_label!r}: {other.name!r} and {name!r}.",
                    "give each of them, and their schedulers, a name of its own",
                )
        self.by_key[module_id, name] = added

    def metrics_reported(self, metrics: Mapping[str, float]) -> None:
        """Show metrics of the run to the schedulers that monitor them."""
        for optimizer in self:
            if optimizer.scheduler is not None:
                optimizer.scheduler.metrics_reported(metrics)

    def remove(self, module_id: str) -> None:
        """Remove all optimizers of a module."""
        for optimizer in self.of(module_id):
            del self.by_key[module_id, optimizer.name]

    def of(self, module_id: str) -> list[RegisteredOptimizer]:
        """The optimizers of a module, in the order in which they were registered."""
        return [optimizer for optimizer in self if optimizer.module_id == module_id]


class OptimizerCycle:
    """Which optimizers of a module act on a minibatch: all, or by `frequency` one at a time."""

    def __init__(self, optimizers: Sequence[RegisteredOptimizer]) -> None:
        self.optimizers = list(optimizers)
        self.names = tuple(optimizer.name for optimizer in optimizers)
        self.position = 0
        """Steps so far: each plugin's optimizers with a frequency have a cycle of their own."""
        self._cycles: dict[str, list[RegisteredOptimizer]] = {}
        for optimizer in optimizers:
            if optimizer.frequency:
                self._cycles.setdefault(optimizer.plugin, []).append(optimizer)

    def acting(self) -> tuple[str, ...]:
        """The names of the optimizers that may act on the next minibatch."""
        if not self._cycles:
            return self.names
        resting = set()
        for cycle in self._cycles.values():
            position = self.position % sum(optimizer.frequency for optimizer in cycle)
            for optimizer in cycle:
                if not 0 <= position < optimizer.frequency:
                    resting.add(optimizer.name)
                position -= optimizer.frequency
        return tuple(name for name in self.names if name not in resting)


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
    together = len(optimizers) > 1 and not all(other.frequency for other in optimizers)
    for optimizer in optimizers:
        if optimizer.needs_closure and (shared or together):
            raise PluginError(
                f"{optimizer} is LBFGS, which must act alone.",
                "make it the only optimizer of its module, or give it a 'frequency' of its own",
            )
        if optimizer.needs_closure and scaled:
            raise RequestError(
                f"{optimizer} is LBFGS, which cannot work with compute.precision 'fp16'.",
                "try: --set compute.precision=bf16",
            )


@cache
def labelled(metric: str, optimizer: str) -> str:
    """`learning_rate`, or `learning_rate/actor` where the optimizer has a name."""
    return metric if optimizer == "default" else f"{metric}/{optimizer}"
