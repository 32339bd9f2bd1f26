"""Several fused Adam optimizers stepped by one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from rlplug.optim.no_grad import NoGrad

__all__ = ["FusedAdams", "can_step_together"]

_SETTINGS = ("betas", "eps", "weight_decay", "amsgrad", "maximize")


def can_step_together(optimizers: Sequence[Optimizer]) -> bool:
    """Whether one call can do what their own steps would."""
    return all(_is_plain(one) for one in optimizers) and _settings_agree(optimizers)


class FusedAdams:
    """Steps optimizers with the same settings as one; each keeps, saves and loads its own state."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self._params = [p for one in optimizers for p in one.param_groups[0]["params"]]
        self._owners = [one for one in optimizers for _ in one.param_groups[0]["params"]]
        self._firsts = [(one, one.param_groups[0]["params"][0]) for one in optimizers]
        self._held: list[Tensor] = []
        self._averages: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._counts: Any = torch.zeros(0)
        """How often each parameter was stepped, all of them in one."""
        self._steps: list[Tensor] = []
        self._kernel = torch._fused_adam_
        if (
            optimizers[0]
            .param_groups[0]
            .get("decoupled_weight_decay", type(optimizers[0]) is AdamW)
        ):
            self._kernel = torch._fused_adamw_

    def is_plain(self) -> bool:
        """Whether still nobody wants to be called when they step: hooks, schedulers of torch."""
        return not any(
            one._optimizer_step_pre_hooks or one._optimizer_step_post_hooks or "step" in vars(one)
            for one in self._optimizers
        )

    def step(self, gradients: list[Tensor]) -> None:
        """Step all of them by these gradients, in the order of their parameters."""
        if not self._is_current() and not self._gather():
            # State is made by an optimizer's own first step.
            for one in self._optimizers:
                one.step()
            return
        group = self._optimizers[0].param_groups[0]
        beta1, beta2 = group["betas"]
        self._counts += 1
        with NoGrad():
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

    def _is_current(self) -> bool:
        """Whether no optimizer got new state since, as loading one does."""
        return bool(self._held) and all(
            one.state[param]["step"] is held
            for (one, param), held in zip(self._firsts, self._held, strict=True)
        )

    def _gather(self) -> bool:
        states = [one.state[param] for one, param in zip(self._owners, self._params, strict=True)]
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
        self._held = [one.state[param]["step"] for one, param in self._firsts]
        return True


def _is_plain(one: Any) -> bool:
    return (
        type(one) in (Adam, AdamW)
        and len(one.param_groups) == 1
        and bool(one.param_groups[0].get("fused"))
        and not one.param_groups[0]["amsgrad"]
        and not isinstance(one.param_groups[0]["lr"], Tensor)
        and not one._optimizer_step_pre_hooks
        and not one._optimizer_step_post_hooks
    )


def _settings_agree(optimizers: Sequence[Optimizer]) -> bool:
    first = optimizers[0].param_groups[0]
    return all(
        type(one) is type(optimizers[0])
        and one.param_groups[0]["lr"] == first["lr"]
        and all(one.param_groups[0][name] == first[name] for name in _SETTINGS)
        for one in optimizers
    )
