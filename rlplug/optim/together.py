"""Several fused Adam optimizers stepped by one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.adam import adam

__all__ = ["FusedAdams", "can_step_together"]

_SETTINGS = ("betas", "eps", "weight_decay", "amsgrad", "maximize")


def can_step_together(optimizers: Sequence[Optimizer]) -> bool:
    """Whether one call can do what their own steps would."""
    return all(_is_plain(one) for one in optimizers) and _settings_agree(optimizers)


class FusedAdams:
    """Holds the state of alike optimizers side by side; each keeps and saves its own."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self._params = [p for one in optimizers for p in one.param_groups[0]["params"]]
        self._owners = [one for one in optimizers for _ in one.param_groups[0]["params"]]
        self._first: list[tuple[Optimizer, Any, Tensor]] = []
        self._state: list[list[Tensor]] = []

    def step(self, gradients: list[Tensor]) -> None:
        """Step all of them by these gradients, in the order of their parameters."""
        if not self._is_current() and not self._gather():
            # State is made by an optimizer's own first step.
            for one in self._optimizers:
                one.step()
            return
        group = self._optimizers[0].param_groups[0]
        averages, squares, steps = self._state
        with torch.no_grad():
            adam(
                self._params,
                gradients,
                averages,
                squares,
                [],
                steps,
                foreach=False,
                fused=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=group["maximize"],
                decoupled_weight_decay=group.get("decoupled_weight_decay", False),
            )

    def rates_agree(self) -> bool:
        """Whether schedules still have them at one learning rate."""
        rate = self._optimizers[0].param_groups[0]["lr"]
        return all(one.param_groups[0]["lr"] == rate for one in self._optimizers)

    def _is_current(self) -> bool:
        """Whether no optimizer got new state since, as loading one does."""
        return bool(self._first) and all(
            one.state[param]["exp_avg"] is held for one, param, held in self._first
        )

    def _gather(self) -> bool:
        states = [one.state[param] for one, param in zip(self._owners, self._params, strict=True)]
        if not all(states):
            return False
        self._state = [[state[name] for state in states] for name in _STATE]
        self._first = [
            (
                one,
                one.param_groups[0]["params"][0],
                one.state[one.param_groups[0]["params"][0]]["exp_avg"],
            )
            for one in self._optimizers
        ]
        return True


_STATE = ("exp_avg", "exp_avg_sq", "step")


def _is_plain(one: Any) -> bool:
    return (
        type(one) in (Adam, AdamW)
        and len(one.param_groups) == 1
        and bool(one.param_groups[0].get("fused"))
        and not one.param_groups[0]["amsgrad"]
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
