"""Reads the action masks of a request."""

from __future__ import annotations

from typing import Any

import numpy

from rlplug.errors import RequestError
from rlplug.serving.agents import AgentPolicy
from rlplug.serving.description import json_type
from rlplug.serving.policy import Policy
from rlplug.spaces import AnySpace, mask_width

__all__ = ["read_masks"]


def read_masks(policy: Policy, name: str, given: Any, n: int | None) -> Any:
    """The mask of one observation, or with `n`, of so many; of several agents, a mapping."""
    if not isinstance(policy, AgentPolicy):
        return _read(policy.action_space, name, given, n)
    rows = [given] if n is None else given
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        wanted = "an object" if n is None else f"a list of {n} objects"
        raise RequestError(
            f"{name} must be {wanted} by agent, found {json_type(given)}.",
            f"agents: {', '.join(policy.agents)}",
        )
    if rows and rows[0]:
        policy.refuse_others(rows[0])
    if len(rows) != (n or 1) or any(set(row) != set(rows[0]) for row in rows):
        raise RequestError(f"{name} must be {n} objects with the same agents, found {len(rows)}.")
    return {
        agent: _read(
            policy.agents[agent].action_space,
            f"{name}[{agent!r}]",
            given[agent] if n is None else [row[agent] for row in rows],
            n,
        )
        for agent in rows[0]
    }


def _read(space: AnySpace, name: str, given: Any, n: int | None) -> Any:
    width = mask_width(space)
    if width is None:
        raise RequestError(
            f"{name}: this policy cannot use a mask, its actions are numbers within bounds.",
            f"leave {name} out",
        )
    shape = (width,) if n is None else (n, width)
    try:
        mask = numpy.asarray(given)
    except ValueError:
        mask = numpy.empty(0, object)
    if mask.shape != shape or not (mask.dtype == bool or set(mask.flat) <= {0, 1}):
        raise RequestError(
            f"{name} must be {_size(shape)} of true and false, found {_found(mask, given)}.",
            "give true for each action that may be chosen",
        )
    return mask.astype(bool)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} lists of {shape[1]}" if len(shape) > 1 else f"a list of {shape[0]}"


def _found(mask: Any, given: Any) -> str:
    if not isinstance(given, list) or mask.dtype == object:
        return json_type(given)
    return f"shape {mask.shape}, {mask.dtype}"
