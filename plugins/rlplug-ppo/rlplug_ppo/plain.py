"""Plain actors and critics in closed form: the same numbers without autograd's dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from torch import Tensor

from rlplug.nn import ActorCritic, ClosedForm
from rlplug_ppo.scores import Array

__all__ = ["Pass", "Plain"]

_PREFIX = "network."
_ACTOR, _CRITIC = 0, 1


class Plain:
    """An actor and a critic apart, both nothing but linear layers and activations."""

    def __init__(self, network: ActorCritic, closed: ClosedForm) -> None:
        self._closed = closed
        self._head = network.policy_head

    @classmethod
    def of(cls, network: ActorCritic) -> Plain | None:
        """None if the network is not as plain."""
        closed = network.closed_form(_PREFIX)
        return None if closed is None else cls(network, closed)

    def current(self) -> bool:
        """Whether this still stands for the network."""
        return self._closed.current()

    def forward(self, observations: Any) -> Pass:
        """Parameters and values of a minibatch."""
        return Pass(self._closed, self._head.log_std, observations)


class Pass:
    """One minibatch: what the network says of it, and the way back."""

    def __init__(self, closed: ClosedForm, log_std: Tensor | None, observations: Any) -> None:
        self._closed = closed
        outputs, self._actor = closed.forward(_ACTOR, observations)
        values, self._critic = closed.forward(_CRITIC, observations)
        self._size = len(outputs)
        self._has_std = log_std is not None
        self.parameters: Array = outputs.T
        """Of the distributions, shape (rows, size)."""
        self.values: Array = values[0]
        """Shape (rows,)."""
        if log_std is not None:
            spread = numpy.broadcast_to(log_std.detach().numpy(), (len(self.values), len(log_std)))
            self.parameters = numpy.concatenate([self.parameters, spread], 1)

    def gradients(self, by_parameters: Array, by_values: Array) -> Mapping[str, Tensor]:
        """Those of everything that is trained, given those of parameters and values."""
        size = self._size
        by_outputs = by_parameters[:, :size] if self._has_std else by_parameters
        closed = self._closed
        closed.backward(_ACTOR, self._actor, by_outputs.T)
        closed.backward(_CRITIC, self._critic, by_values[None])
        if self._has_std:
            numpy.add.reduce(by_parameters[:, size:], 0, out=closed.beside[0])
        return closed.gradients
