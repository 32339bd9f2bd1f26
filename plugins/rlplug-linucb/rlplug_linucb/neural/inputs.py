"""What the network reads: the context, or the context beside the features of each arm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rlplug.errors import UnsupportedSpaceError
from rlplug_linucb.layout import (
    check_rows,
    features_in,
    layout_of,
    no_observations,
    part_as_array,
    wrong_shape,
)

__all__ = ["Inputs", "inputs_of", "mask_in"]


@attrs.frozen(kw_only=True)
class Inputs:
    """The space of the network's inputs, and how they are made of observations."""

    space: Space[Any]
    """Of one input: a context, or [context, arm]."""
    arms_shape: tuple[int, ...] = ()
    """(arms, features); empty for fixed arms."""
    context_dim: int = 0
    """Features of the context beside featured arms."""

    @property
    def featured(self) -> bool:
        """Whether each arm has features, and an input of its own."""
        return bool(self.arms_shape)

    def read(self, observations: Any) -> Any:
        """Inputs of n observations: (n, …), or (n, arms, features) of featured arms."""
        if not self.featured:
            context = _part(observations, "context")
            if context is None or context.shape[1:] != self.space.shape:
                raise wrong_shape("context", context, ("n", *(self.space.shape or ())))
            return context
        arms = _part(observations, "arms")
        if arms is None or arms.shape[1:] != self.arms_shape:
            raise wrong_shape("arms", arms, ("n", *self.arms_shape))
        if not self.context_dim:
            return arms
        context = _part(observations, "context")
        if context is None or context.shape[1:] != (self.context_dim,):
            raise wrong_shape("context", context, ("n", self.context_dim))
        if not torch.compiler.is_compiling():
            # An exported program would take no other number of rows.
            check_rows({"context": context, "arms": arms})
        shape = (*arms.shape[:2], self.context_dim)
        if isinstance(arms, numpy.ndarray):
            return numpy.concatenate([numpy.broadcast_to(context[:, None], shape), arms], -1)
        return torch.cat([context[:, None].expand(shape), arms], -1)

    def chosen(self, observations: Tensor | Mapping[str, Any], actions: Tensor) -> Tensor:
        """The inputs (n, …) that predict the chosen arms."""
        inputs: Tensor = self.read(observations)
        if not self.featured:
            return inputs
        rows = torch.arange(inputs.shape[0], device=inputs.device)
        return inputs[rows, actions]


def inputs_of(observation_space: Space[Any], action_space: Space[Any]) -> Inputs:
    """The inputs of an environment; raises UnsupportedSpaceError for spaces not of a bandit."""
    if isinstance(observation_space, spaces.Tuple):
        raise UnsupportedSpaceError(
            f"a neural bandit reads one space of contexts, found {observation_space}."
        )
    if not isinstance(observation_space, spaces.Dict):
        return Inputs(space=observation_space)
    parts = observation_space.spaces
    unknown = sorted(set(parts) - {"context", "arms", "action_mask"})
    if unknown or not {"context", "arms"} & set(parts):
        raise UnsupportedSpaceError(
            "a neural bandit reads the observation keys context, arms and action_mask; "
            f"found {', '.join(sorted(parts)) or 'none'}."
        )
    if "arms" not in parts:
        return inputs_of(parts["context"], action_space)
    layout = layout_of(observation_space, action_space)
    width = layout.context_dim + layout.arm_dim
    return Inputs(
        space=spaces.Box(-numpy.inf, numpy.inf, (width,), numpy.float32),
        arms_shape=(layout.num_arms, layout.arm_dim),
        context_dim=layout.context_dim,
    )


def mask_in(observations: Any, mask: Any) -> Any:
    """The mask, or else that of the observations."""
    return _part(observations, "action_mask", None) if mask is None else mask


def _part(observations: Any, name: str, *otherwise: Any) -> Any:
    if isinstance(observations, Mapping):
        read = part_as_array if name == "action_mask" else features_in
        return read(name, observations.get(name))
    if otherwise:
        return otherwise[0]
    if not hasattr(observations, "shape"):
        raise no_observations(observations)
    return observations
