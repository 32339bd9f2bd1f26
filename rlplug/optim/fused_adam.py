"""Steps of torch's optimizers without what it does around them; of fused Adam, by its kernel."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer, optimizer

__all__ = ["FusedAdam", "step_alone"]


class FusedAdam:
    """Steps a fused Adam or AdamW, which keeps, saves and loads its own state."""

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
        self._counts: Any = torch.zeros(0)
        """How often each parameter was stepped, all of them in one."""
        self._steps: list[Tensor] = []
        decoupled = group.get("decoupled_weight_decay", type(optimizer) is AdamW)
        self._kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_

    def step(self, gradients: list[Tensor]) -> bool:
        """Step by these gradients, in the order of its parameters; False: the optimizer has to.

        Hooks or schedulers of torch may want to be called. Autograd must be off.
        """
        one = self._optimizer
        if not _is_alone(one):
            return False
        # Loading a state replaces what the optimizer holds.
        held = self._held
        current = held is not None and one.state[self._params[0]]["step"] is held
        if len(gradients) != len(self._params) or not (current or self._gather()):
            return False
        group = one.param_groups[0]
        beta1, beta2 = group["betas"]
        self._counts += 1
        self._kernel(
            self._params,
            gradients,
            self._averages,
            self._squares,
            [],
            self._steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=group["maximize"],
        )
        return True

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
        self._counts = counts.numpy() if counts.device.type == "cpu" else counts
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
