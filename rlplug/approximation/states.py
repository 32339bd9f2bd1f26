"""What value functions are given: observations or States, ends of episodes, actions."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from rlplug.errors import RequestError

__all__ = ["is_state", "observation_of", "terminated_rows", "whole_actions", "with_observation"]


def is_state(inputs: Any) -> bool:
    """Whether it is like a State of all.core: `observation`, and `mask`, 0 where terminated."""
    return hasattr(inputs, "observation") and hasattr(inputs, "mask")


def observation_of(inputs: Any) -> Any:
    """The observation of a State; anything else is an observation itself."""
    return inputs.observation if is_state(inputs) else inputs


def with_observation(state: Any, observation: Any) -> Any:
    """A copy of a State with another observation."""
    changed = copy.copy(state)
    if isinstance(changed, MutableMapping):
        changed["observation"] = observation
    else:
        # Past the __setattr__ of frozen classes: nobody else has this copy yet.
        object.__setattr__(changed, "observation", observation)
    return changed


def terminated_rows(inputs: Any, terminated: Any, values: Tensor) -> Tensor | None:
    """Which rows of `values` are terminated, by the State's mask or as told; None: nobody said."""
    rows: Tensor | None = None
    if is_state(inputs):
        mask = torch.as_tensor(inputs.mask, device=values.device)
        rows = _one_per_row(mask == 0, values, "the mask")
    if terminated is not None:
        told = torch.as_tensor(terminated, device=values.device)
        if told.dtype != torch.bool:
            raise RequestError(
                f"terminated is boolean, found {told.dtype}.", "try: terminated.bool()"
            )
        told = _one_per_row(told, values, "terminated")
        rows = told if rows is None else rows | told
    return rows


def whole_actions(actions: Any, values: Tensor) -> Tensor:
    """Discrete actions, one per row of `values`; floats are taken if they are whole."""
    try:
        if isinstance(actions, list | tuple):
            rows = [torch.as_tensor(action).reshape(-1) for action in actions]
            actions = torch.cat([torch.empty(0, dtype=torch.long), *rows])
        found = torch.as_tensor(actions, device=values.device)
        whole = found.long()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RequestError(
            f"discrete actions are whole numbers, found {actions!r}.", "try: indexes of actions"
        ) from error
    if found.is_floating_point() and not bool((found == whole).all()):
        first = found[found != whole].flatten()[0].item()
        raise RequestError(
            f"discrete actions are whole numbers, found {first:.6g}.", "try: indexes of actions"
        )
    # A GPU refuses others by itself; to look at them here would wait for it.
    if whole.is_cpu and whole.numel():
        number = values.shape[1]
        if (least := int(whole.min())) < 0 or (most := int(whole.max())) >= number:
            wrong = least if least < 0 else most
            raise RequestError(
                f"there is no action {wrong}: there are {number}, counted from 0.",
                "try: indexes of actions",
            )
    return _one_per_row(whole, values, "actions")


def _one_per_row(column: Tensor, values: Tensor, what: str) -> Tensor:
    """The column with shape (n,); another number of rows would be broadcast or cut."""
    if column.numel() != len(values):
        label = what if what == "actions" else f"values of {what}"
        raise RequestError(
            f"there are {column.numel()} {label} for {len(values)} rows.", "try: one for each row"
        )
    return column.reshape(-1)
