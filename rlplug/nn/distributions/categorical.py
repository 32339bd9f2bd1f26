"""Distributions over one choice, and over several at once."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from rlplug.nn.arrays import Array, NumpyArray, UnsupportedError, accumulate, recorded, recording
from rlplug.nn.distributions.distribution import Constants, check_mask, masked, masked_array

__all__ = ["Categorical", "MultiCategorical"]


class Categorical:
    """One of n actions; the parameters are logits, the mask has a place for each action."""

    deviations = 0

    def __init__(self, space: spaces.Discrete) -> None:
        self.size = int(space.n)
        self._start = int(space.start)
        self._dtype = space.dtype

    def sample(
        self, parameters: NumpyArray, random: numpy.random.Generator, mask: NumpyArray | None = None
    ) -> NumpyArray:
        """One action for each row, shape (n,)."""
        if mask is not None:
            check_mask(mask)
        return self._actions(_draw(masked_array(parameters, mask), random))

    def mode(self, parameters: NumpyArray, mask: NumpyArray | None = None) -> NumpyArray:
        """The most likely action of each row, the first of equal ones."""
        if mask is not None:
            check_mask(mask)
        return self._actions(masked_array(parameters, mask).argmax(-1))

    def tensor_sample(
        self, parameters: Tensor, generator: torch.Generator, mask: Tensor | None = None
    ) -> Tensor:
        """`sample` in torch."""
        return _tensor_draw(masked(parameters, mask), generator) + self._start

    def tensor_mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mode` in torch."""
        return masked(parameters, mask).argmax(-1) + self._start

    def for_env(self, actions: NumpyArray) -> NumpyArray:
        """The actions themselves."""
        return actions

    def log_prob(self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-probability of each row's action."""
        return self.score(parameters, actions, mask)[0]

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The entropy of each row."""
        return _entropy(torch.log_softmax(masked(parameters, mask), -1))

    def score(
        self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`log_prob` and `entropy` at the price of one."""
        logits: Any = parameters if mask is None else masked(parameters, mask)
        indices: Any = actions.long()
        if self._start:
            indices = indices - self._start
        if type(logits) is Array and type(indices) is Array:
            return _array_score(logits, indices)
        logs = torch.log_softmax(logits, -1)
        return logs.gather(-1, indices.unsqueeze(-1)).squeeze(-1), _entropy(logs)

    def kl(self, parameters: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
        """The divergence of each row from the same row of `others`."""
        return _kl(masked(parameters, mask), masked(others, mask))

    def _actions(self, indices: NumpyArray) -> NumpyArray:
        return (indices + self._start if self._start else indices).astype(self._dtype, copy=False)


class MultiCategorical:
    """Several choices at once, independent of each other.

    The logits of all choices lie one after the other, and so do the places of the mask.
    """

    deviations = 0

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        self._counts = [int(n) for n in space.nvec.reshape(-1)]
        self._start = space.start.astype(numpy.int64)
        self._constants = Constants(start=self._start)
        self._shape = space.shape
        self._dtype = space.dtype
        self.size = sum(self._counts)
        self._most = max(self._counts)
        self._even = min(self._counts) == self._most
        places = numpy.arange(self._most) < numpy.array(self._counts)[:, None]
        self._places = places.reshape(-1)

    def sample(
        self, parameters: NumpyArray, random: numpy.random.Generator, mask: NumpyArray | None = None
    ) -> NumpyArray:
        """One action for each row, shape (n, *shape)."""
        return self._actions(_draw(self._array_grid(parameters, mask), random))

    def mode(self, parameters: NumpyArray, mask: NumpyArray | None = None) -> NumpyArray:
        """The most likely action of each row."""
        return self._actions(self._array_grid(parameters, mask).argmax(-1))

    def tensor_sample(
        self, parameters: Tensor, generator: torch.Generator, mask: Tensor | None = None
    ) -> Tensor:
        """`sample` in torch."""
        drawn = _tensor_draw(self._grid(parameters, mask), generator).reshape(-1, *self._shape)
        return drawn + self._constants.on(drawn, "start")

    def tensor_mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mode` in torch."""
        indices = self._grid(parameters, mask).argmax(-1).reshape(-1, *self._shape)
        return indices + self._constants.on(indices, "start")

    def for_env(self, actions: NumpyArray) -> NumpyArray:
        """The actions themselves."""
        return actions

    def log_prob(self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-probability of each row's action: the sum over its choices."""
        return self._chosen(torch.log_softmax(self._grid(parameters, mask), -1), actions)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The entropy of each row: the sum over its choices."""
        return _entropy(torch.log_softmax(self._grid(parameters, mask), -1)).sum(-1)

    def score(
        self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`log_prob` and `entropy` at the price of one."""
        logs = torch.log_softmax(self._grid(parameters, mask), -1)
        return self._chosen(logs, actions), _entropy(logs).sum(-1)

    def kl(self, parameters: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
        """The divergence of each row from the same row of `others`."""
        return _kl(self._grid(parameters, mask), self._grid(others, mask)).sum(-1)

    def _grid(self, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """Shape (n, choices, most): shorter choices filled up with forbidden places."""
        logits = masked(parameters, mask)
        if self._even:
            return logits.reshape(*logits.shape[:-1], -1, self._most)
        lowest = torch.finfo(logits.dtype).min
        choices = [
            functional.pad(choice, (0, self._most - choice.shape[-1]), value=lowest)
            for choice in torch.split(logits, self._counts, -1)
        ]
        return torch.stack(choices, -2)

    def _array_grid(self, parameters: NumpyArray, mask: NumpyArray | None) -> NumpyArray:
        grid = numpy.full((len(parameters), len(self._places)), -numpy.inf, parameters.dtype)
        grid[:, self._places] = masked_array(parameters, mask)
        choices: NumpyArray = grid.reshape(len(parameters), -1, self._most)
        if mask is not None:
            check_mask((choices > -numpy.inf).any(-1).min(-1, keepdims=True))
        return choices

    def _actions(self, indices: NumpyArray) -> NumpyArray:
        actions = indices.reshape(-1, *self._shape) + self._start
        return actions.astype(self._dtype, copy=False)

    def _chosen(self, logs: Tensor, actions: Tensor) -> Tensor:
        indices = actions.long()
        if self._start.any():
            indices = indices - self._constants.on(actions, "start")
        return (
            logs.gather(-1, indices.reshape(indices.shape[0], -1).unsqueeze(-1)).squeeze(-1).sum(-1)
        )


def _array_score(logits: Array, actions: Array) -> tuple[Any, Any]:
    """Log-probabilities of actions (n,) under logits (n, actions), and entropies, in two nodes.

    What log_softmax, gather and five more operations would give, at a fraction of their dispatch.
    """
    tape = logits.tape
    if actions.value.size and actions.value.min() < 0:
        raise UnsupportedError("an action below 0")
    # With a row for each action, reductions run along memory.
    turned = numpy.ascontiguousarray(logits.value.T)
    turned = turned - numpy.maximum.reduce(turned)
    p = numpy.exp(turned)
    total = numpy.add.reduce(p)
    p /= total
    logs = turned - numpy.log(total)
    chosen = actions.value, tape.counted(logits.value.shape[0])
    entropies = -numpy.add.reduce(p * logs)
    if not recording(logits):
        return Array(logs[chosen], tape), Array(entropies, tape)

    def log_prob_back(g: NumpyArray) -> None:
        # d log p(a) / d logits = [a] - p
        grad = p * -g
        grad[chosen] += g
        accumulate(logits, grad.T)

    def entropy_back(g: NumpyArray) -> None:
        # d H / d logits = -p (log p + H)
        accumulate(logits, (p * ((logs + entropies) * -g)).T)

    return recorded(logs[chosen], tape, log_prob_back), recorded(entropies, tape, entropy_back)


def _draw(logits: NumpyArray, random: numpy.random.Generator) -> NumpyArray:
    """Draw from each softmax over the last axis: the largest logit after Gumbel noise."""
    noisy: NumpyArray = logits - numpy.log(random.standard_exponential(logits.shape))
    drawn: NumpyArray = noisy.argmax(-1)
    return drawn


def _tensor_draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """The same in torch."""
    return (logits - torch.empty_like(logits).exponential_(generator=generator).log()).argmax(-1)


def _entropy(logs: Tensor) -> Tensor:
    return -(logs.exp() * logs).sum(-1)


def _kl(logits: Tensor, others: Tensor) -> Tensor:
    logs = torch.log_softmax(logits, -1)
    return (logs.exp() * (logs - torch.log_softmax(others, -1))).sum(-1)
