"""Steps of torch's optimizers without what it does around them; of fused Adams, all at once."""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer, optimizer

from rlplug.optim.no_grad import OptimizerStep

__all__ = ["FusedAdam", "FusedSteps", "step_alone"]


class FusedSteps:
    """Steps of fused Adams that are taken together: those with equal settings by one kernel."""

    def __init__(self) -> None:
        self._scope = OptimizerStep()
        self._counts: list[Any] = []
        self._lists: dict[_Settings, tuple[list[Tensor], ...]] = {}
        """Parameters, gradients, their averages, those of their squares, and counts of steps."""

    def add(self, adam: FusedAdam, gradients: list[Tensor]) -> bool:
        """Step by these gradients, in the order of its parameters; False: the optimizer has to.

        Hooks or schedulers of torch may want to be called, and sparse gradients are not for it.
        """
        found = adam.held()
        if found is None or len(gradients) != len(found[0]) or any(map(_IS_SPARSE, gradients)):
            return False
        params, *held = found
        settings = adam.settings()
        lists = self._lists.get(settings)
        if lists is None:
            lists = self._lists[settings] = ([], [], [], [], [])
        for all_of_them, own in zip(lists, (params, gradients, *held), strict=True):
            all_of_them += own
        self._counts.append(adam.counts)
        return True

    def run(self) -> None:
        """Take all steps that were added, as they were set then."""
        if not self._counts:
            return
        for counts in self._counts:
            counts += 1
        with self._scope:
            for settings, (params, gradients, averages, squares, steps) in self._lists.items():
                _, decoupled, lr, beta1, beta2, weight_decay, eps, maximize = settings
                kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
                kernel(
                    params,
                    gradients,
                    averages,
                    squares,
                    [],
                    steps,
                    lr=lr,
                    beta1=beta1,
                    beta2=beta2,
                    weight_decay=weight_decay,
                    eps=eps,
                    amsgrad=False,
                    maximize=maximize,
                )
        self._counts.clear()
        self._lists.clear()


class FusedAdam:
    """What the kernel needs of a fused Adam or AdamW, which keeps and loads its own state."""

    @classmethod
    def of(cls, optimizer: Optimizer) -> FusedAdam | None:
        """None if the optimizer is another one, or has settings that need its own step."""
        return cls(optimizer) if _is_fused_adam(optimizer) else None

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer: Any = optimizer
        (group,) = optimizer.param_groups
        self._params: list[Tensor] = group["params"]
        self._held: Tensor | None = None
        self._averages: list[Tensor] = []
        self._squares: list[Tensor] = []
        self.counts: Any = torch.zeros(0)
        """How often each parameter was stepped, all of them in one."""
        self._steps: list[Tensor] = []
        self._decoupled = group.get("decoupled_weight_decay", type(optimizer) is AdamW)
        first = self._params[0]
        self._place = first.device, first.dtype

    def settings(self) -> _Settings:
        """All that the kernel does the same for every parameter that it is given."""
        group = self._optimizer.param_groups[0]
        return (
            self._place,
            self._decoupled,
            group["lr"],
            *group["betas"],
            group["weight_decay"],
            group["eps"],
            group["maximize"],
        )

    def held(self) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]] | None:
        """Parameters, averages of gradients and of their squares, and counts of steps.

        None if the optimizer has to step by itself.
        """
        one = self._optimizer
        if not _is_alone(one):
            return None
        # Loading a state replaces what the optimizer holds.
        held = self._held
        current = held is not None and one.state[self._params[0]]["step"] is held
        if not (current or self._gather()):
            return None
        return self._params, self._averages, self._squares, self._steps

    def _gather(self) -> bool:
        state_of = self._optimizer.state
        if not state_of:
            # The optimizer's own first step would do it, and import the compiler, which takes
            # seconds.
            for param in self._params:
                state_of[param] = _first_state(param)
        states = [state_of[param] for param in self._params]
        if not all(states):
            return False
        # The counts become views of one tensor, so that one addition moves all of them.
        counts = torch.stack([state["step"] for state in states])
        self._steps = list(counts.unbind())
        # NumPy adds one in a fraction of what a call of torch takes.
        self.counts = counts.numpy() if counts.device.type == "cpu" else counts
        for state, step in zip(states, self._steps, strict=True):
            state["step"] = step
        self._averages = [state["exp_avg"] for state in states]
        self._squares = [state["exp_avg_sq"] for state in states]
        self._held = self._steps[0]
        return True


def step_alone(one: Optimizer) -> None:
    """Step one of torch's own without what surrounds its step: that imports the compiler.

    Others, and those whose hooks or schedulers want to be called, step as usual. Autograd must be
    off.
    """
    own = type(one).__module__.startswith("torch.optim.")
    if own and _is_alone(one) and not one.defaults.get("differentiable"):
        inspect.unwrap(type(one).step)(one)
    else:
        one.step()


def _is_alone(one: Any) -> bool:
    """Whether nothing else is to be called at a step."""
    hooks = (
        one._optimizer_step_pre_hooks,
        one._optimizer_step_post_hooks,
        optimizer._global_optimizer_pre_hooks,
        optimizer._global_optimizer_post_hooks,
    )
    return "step" not in vars(one) and not any(hooks)


def _first_state(param: Tensor) -> dict[str, Tensor]:
    return {
        "step": torch.zeros((), dtype=torch.float32, device=param.device),
        "exp_avg": torch.zeros_like(param),
        "exp_avg_sq": torch.zeros_like(param),
    }


def _is_fused_adam(one: Any) -> bool:
    return (
        type(one) in (Adam, AdamW)
        and len(one.param_groups) == 1
        and bool(one.param_groups[0].get("fused"))
        and not one.param_groups[0]["amsgrad"]
        and not isinstance(one.param_groups[0]["lr"], Tensor)
        and not one._optimizer_step_pre_hooks
        and not one._optimizer_step_post_hooks
    )


_Settings: TypeAlias = tuple[Any, ...]
_IS_SPARSE = attrgetter("is_sparse")
