"""What value functions are given: observations or States, ends of episodes, actions."""

from __future__ import annotations

import copy
import reprlib
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from rlplug.errors import RequestError

__all__ = [
    "is_state",
    "observation_of",
    "real_actions",
    "terminated_rows",
    "whole_actions",
    "with_observation",
]


def is_state(inputs: Any) -> bool:
    """Whether it is like a State of all.core: `observation`, and `mask`, 0 where terminated."""
    return hasattr(inputs, "observation") and hasattr(inputs, "mask")


def observation_of(inputs: Any) -> Any:
    """The observation of a State; anything else is an observation itself."""
    return inputs.observation if is_state(inputs) else inputs


def with_observation(state: Any, observation: Any) -> Any:
    """A copy of a State with another observation."""
    if hasattr(state, "_replace"):
        # A named tuple.
        return state._replace(observation=observation)
    changed = copy.copy(state)
    if isinstance(changed, MutableMapping):
        changed["observation"] = observation
        return changed
    try:
        # Past the __setattr__ of frozen classes: nobody else has this copy yet.
        object.__setattr__(changed, "observation", observation)
    except AttributeError as error:
        raise RequestError(
            f"a copy of {reprlib.repr(state)} cannot have other observations: {error}.",
            "try: features of state.observation, or a class that lets observation be set",
        ) from error
    return changed


def terminated_rows(inputs: Any, terminated: Any, values: Tensor) -> Tensor | None:
    """Which rows of `values` are terminated, by the State's mask or as told; None: nobody said."""
    rows: Tensor | None = None
    if is_state(inputs):
        hint = "try: 0 where the episode is terminated, 1 elsewhere"
        mask = _tensor(inputs.mask, "the mask is a number for each row", hint)
        # To look at it on a GPU would wait for it.
        if mask.is_cpu and bool(mask.isnan().any()):
            raise RequestError("the mask has NaN.", hint)
        rows = _one_per_row(mask.to(values.device) == 0, values, "the mask")
    if terminated is not None:
        what = "terminated is boolean"
        told = _tensor(terminated, what, "try: one True or False for each row").to(values.device)
        if isinstance(terminated, Tensor) and told.dtype != torch.bool:
            raise RequestError(f"{what}, found {told.dtype}.", "try: terminated.bool()")
        # An empty list is one of floats for torch.
        if told.numel() and told.dtype != torch.bool:
            raise RequestError(
                f"{what}, found {reprlib.repr(terminated)}.", "try: torch.tensor(terminated).bool()"
            )
        told = told.bool()
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
        whole = found if found.is_complex() else found.long()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RequestError(
            f"discrete actions are whole numbers, found {actions!r}.", "try: indexes of actions"
        ) from error
    if found.is_complex():
        raise RequestError(
            f"discrete actions are whole numbers, found {found.dtype}.", "try: indexes of actions"
        )
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


def real_actions(actions: Any, observations: Tensor) -> Tensor:
    """Continuous actions, one row beside each of the observations, whose real type they take."""
    what, hint = "continuous actions are real numbers", "try: one row of numbers per observation"
    found = _tensor(actions, what, hint)
    if found.is_complex():
        raise RequestError(f"{what}, found {found.dtype}.", "try: actions.real")
    beside, shape = tuple(observations.shape), tuple(found.shape)
    if not shape or shape[:-1] != beside[:-1]:
        raise RequestError(
            f"continuous actions have the shape {shape} beside observations of {beside}.", hint
        )
    # In the type of whole observations, such as pixels, an action of 0.7 would be 0.
    kind = observations.dtype if observations.is_floating_point() else torch.float32
    return found.to(observations.device, kind)


def _tensor(value: Any, what: str, hint: str) -> Tensor:
    """A value, such as a list of tensors, as a tensor where it is."""
    try:
        if isinstance(value, list | tuple) and value:
            return torch.stack([torch.as_tensor(one) for one in value])
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(f"{what}, found {reprlib.repr(value)}.", hint) from error


def _one_per_row(column: Tensor, values: Tensor, what: str) -> Tensor:
    """The column with shape (n,); another number of rows would be broadcast or cut."""
    # A value without rows is that of one row.
    rows = len(values) if values.ndim else 1
    if column.numel() != rows:
        label = what if what == "actions" else f"values of {what}"
        raise RequestError(
            f"there are {column.numel()} {label} for {rows} rows.", "try: one for each row"
        )
    return column.reshape(-1)
