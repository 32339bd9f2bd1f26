"""Fused Adam stepped by a call of its kernel, without what torch does around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

__all__ = ["FusedAdam"]


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
        if one._optimizer_step_pre_hooks or one._optimizer_step_post_hooks or "step" in vars(one):
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
