"""How networks act: small ones in NumPy, large ones and those on other devices in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from rlplug.nn.arrays import NumpyArray, Plan, plan_arrays
from rlplug.nn.memory import State
from rlplug.nn.modes import evaluating
from rlplug.nn.tensors import device_of, rows_of, to_arrays, to_tensors

__all__ = ["ActingNetwork"]

_LARGEST_IN_NUMPY = 32_000_000
"""Multiplications up to which NumPy is ahead of torch, as measured."""


class ActingNetwork(nn.Module):
    """A network that acts on observations as environments give them."""

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[bool, Plan | None] = {}

    def act(
        self, observations: Any, state: State | None = None, *, explore: bool = False
    ) -> tuple[NumpyArray, Mapping[str, NumpyArray] | None]:
        """What decides n actions, as an array of n rows, and the memory's next state.

        No gradients, no dropout, batch statistics as they are; noisy layers are noisy only with
        `explore`. Whether NumPy or torch computes it makes no difference beyond 1e-5. What is
        written into weights counts at once; another tensor in the place of one is noticed, but
        during a collection or an update only once that is over.
        """
        plan = self._plans.get(explore)
        if plan is None or not plan.current():
            plan = self._plan(explore)
        plain = type(observations) is numpy.ndarray
        rows = len(observations) if plain else rows_of(observations)
        if plan is None or rows * plan.weights > _LARGEST_IN_NUMPY:
            return self._act_in_torch(observations, state, explore)
        if not plain:
            observations = to_arrays(observations)
        answer: tuple[NumpyArray, Mapping[str, NumpyArray] | None] = plan.forward(
            observations, state
        )
        return answer

    def act_on_tensors(
        self, observations: Any, state: State | None = None, *, explore: bool = False
    ) -> tuple[Tensor, Mapping[str, Tensor] | None]:
        """The same for observations that are tensors on the network's device, as tensors."""
        with torch.no_grad(), evaluating(self, noisy=explore):
            return self.step(observations, state)

    def step(
        self, observations: Any, state: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Mapping[str, Tensor] | None]:
        """The same in torch, with gradients, for observations that are tensors."""
        raise TypeError(f"{type(self).__name__} must define step")

    def _plan(self, explore: bool) -> Plan | None:
        """The plan that holds now; a refusal holds until the network is moved."""
        plan = self._plans.get(explore)
        if explore not in self._plans or (plan is not None and not plan.current()):
            plan = self._plans[explore] = plan_arrays(self, noisy=explore)
        return plan

    def _act_in_torch(
        self, observations: Any, state: State | None, explore: bool
    ) -> tuple[NumpyArray, Mapping[str, NumpyArray] | None]:
        device = device_of(self)
        before = None if state is None else to_tensors(state, device)
        seen = to_tensors(observations, device)
        values, after = self.act_on_tensors(seen, before, explore=explore)
        return to_arrays(values), None if after is None else to_arrays(after)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ActingNetwork:
        # Also where this was moved to decides whether NumPy can act.
        self._plans.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # untyped in torch
        return self

    def __getstate__(self) -> dict[str, Any]:
        """All but the views: a copy has weights of its own."""
        return {**self.__dict__, "_plans": {}}
