"""Modules for evaluations of several agents: all of them as one, and random play."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import nn

from rlplug.batch.nested import first_leaf
from rlplug.plugin import Acted, ActInput, Module

__all__ = ["AgentModules", "RandomModule"]


class AgentModules(Module):
    """The modules of several agents, as one that cannot act by itself."""

    def __init__(self, by_id: Mapping[str, Module]) -> None:
        super().__init__()
        self.ids = tuple(by_id)
        self.parts = nn.ModuleList(by_id.values())

    @property
    def by_id(self) -> dict[str, Any]:
        """The modules by id."""
        return dict(zip(self.ids, self.parts, strict=True))


class RandomModule(Module):
    """Draws every action that may be chosen with the same probability."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        super().__init__()
        self._space = copy.deepcopy(action_space)

    def forward_inference(self, act: ActInput) -> Acted:
        """Random actions."""
        space, mask = self._space, act.action_mask
        space.seed(int(act.random.integers(2**31)))
        if mask is None:
            drawn = [space.sample() for _ in range(len(first_leaf(act.observations)))]
        else:
            drawn = [space.sample(numpy.asarray(row, numpy.int8)) for row in mask]
        batch: Any = create_empty_array(space, len(drawn), numpy.empty)
        return Acted(concatenate(space, drawn, batch))

    forward_exploration = forward_inference
