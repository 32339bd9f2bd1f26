"""Modules for evaluations of several agents: all of them as one, random play, exploring copies."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy
from gymnasium import spaces
from torch import nn

from rlplug.batch.nested import first_leaf, tree_map
from rlplug.plugin import Acted, ActInput, Module

__all__ = ["AgentModules", "Exploring", "RandomModule"]


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
        return Acted(tree_map(lambda *rows: numpy.stack(rows), *map(_as_leaf, drawn)))

    forward_exploration = forward_inference


class Exploring(Module):
    """A copy that acts in evaluations as it does in training: greedy games would all be alike."""

    def __init__(self, copy: Module) -> None:
        super().__init__()
        self.copy = copy

    def initial_state(self, n: int) -> Any:
        """That of the copy."""
        return self.copy.initial_state(n)

    def forward_inference(self, act: ActInput) -> Acted:
        """Act as in training."""
        return self.copy.forward_exploration(act)


def _as_leaf(drawn: Any) -> Any:
    return drawn if isinstance(drawn, tuple | dict) else numpy.asarray(drawn)
