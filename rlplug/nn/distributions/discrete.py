"""Distributions over one choice, over several at once, and over bits."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from rlplug.nn.arrays import (
    Array,
    NumpyArray,
    UnsupportedError,
    accumulate,
    recorded,
    recording,
    sigmoid,
)
from rlplug.nn.distributions.distribution import (
    Constants,
    Distribution,
    check_mask,
    masked,
    masked_array,
)

__all__ = ["Binary", "Categorical", "MultiCategorical"]


class Categorical(Distribution):
    """One of n actions; the parameters are logits, the mask has a place for each action."""

    def __init__(self, space: spaces.Discrete) -> None:
        self.size = int(space.n)
        self._start = int(space.start)
        self._dtype = space.dtype

    def sample(
        self, parameters: NumpyArray, random: numpy.random.Generator, mask: NumpyArray | None = None
    ) -> NumpyArray:
        """One action for each row, shape (n,)."""
        return self._actions(_draw(self._logits(parameters, mask), random))

    def mode(self, parameters: NumpyArray, mask: NumpyArray | None = None) -> NumpyArray:
        """The most likely action of each row, the first of equal ones."""
        return self._actions(self._logits(parameters, mask).argmax(-1))

    def tensor_sample(
        self, parameters: Tensor, generator: torch.Generator, mask: Tensor | None = None
    ) -> Tensor:
        """`sample` in torch."""
        return _tensor_draw(masked(parameters, mask), generator) + self._start

    def tensor_mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mode` in torch."""
        return masked(parameters, mask).argmax(-1) + self._start

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

    def _logits(self, parameters: NumpyArray, mask: NumpyArray | None) -> NumpyArray:
        if mask is not None:
            check_mask(mask)
        return masked_array(parameters, mask)

    def _actions(self, indices: NumpyArray) -> NumpyArray:
        return (indices + self._start if self._start else indices).astype(self._dtype, copy=False)


class MultiCategorical(Distribution):
    """Several choices at once, independent of each other.

    The logits of all choices lie one after the other, and so do the places of the mask.
    """

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        counts = space.nvec.reshape(-1)
        self.size = int(counts.sum())
        self._start = space.start.astype(numpy.int64)
        self._shape = space.shape
        self._dtype = space.dtype
        self._most = int(counts.max())
        self._even = bool((counts == self._most).all())
        # The logit of each place in a table of choices; of those beyond, the one after the last.
        exists = numpy.arange(self._most) < counts[:, None]
        self._places = numpy.where(exists, exists.cumsum().reshape(exists.shape) - 1, self.size)
        self._constants = Constants(start=self._start, places=self._places.reshape(-1))

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

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The entropy of each row: the sum over its choices."""
        return _entropy(torch.log_softmax(self._grid(parameters, mask), -1)).sum(-1)

    def score(
        self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`log_prob` and `entropy` at the price of one."""
        logs = torch.log_softmax(self._grid(parameters, mask), -1)
        indices = actions.long()
        if self._start.any():
            indices = indices - self._constants.on(actions, "start")
        indices = indices.reshape(indices.shape[0], -1).unsqueeze(-1)
        return logs.gather(-1, indices).squeeze(-1).sum(-1), _entropy(logs).sum(-1)

    def kl(self, parameters: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
        """The divergence of each row from the same row of `others`."""
        return _kl(self._grid(parameters, mask), self._grid(others, mask)).sum(-1)

    def _grid(self, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """Shape (n, choices, most): shorter choices filled up with forbidden places."""
        logits = masked(parameters, mask)
        if not self._even:
            lowest = torch.full_like(logits[:, :1], torch.finfo(logits.dtype).min)
            places = self._constants.on(logits, "places")
            logits = torch.cat([logits, lowest], 1).index_select(1, places)
        return logits.reshape(logits.shape[0], -1, self._most)

    def _array_grid(self, parameters: NumpyArray, mask: NumpyArray | None) -> NumpyArray:
        logits = masked_array(parameters, mask)
        lowest = numpy.full((len(logits), 1), -numpy.inf, logits.dtype)
        choices: NumpyArray = numpy.concatenate([logits, lowest], 1)[:, self._places]
        if mask is not None:
            check_mask((choices > -numpy.inf).any(-1).min(-1, keepdims=True))
        return choices

    def _actions(self, indices: NumpyArray) -> NumpyArray:
        actions = indices.reshape(-1, *self._shape) + self._start
        return actions.astype(self._dtype, copy=False)


class Binary(Distribution):
    """Independent bits; the parameters are logits of 1, a bit that the mask forbids stays 0."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        self._shape = space.shape
        self._dtype = space.dtype
        self.size = int(numpy.prod(space.shape))

    def sample(
        self, parameters: NumpyArray, random: numpy.random.Generator, mask: NumpyArray | None = None
    ) -> NumpyArray:
        """One action for each row, shape (n, *shape)."""
        chances = sigmoid(masked_array(parameters, mask))
        return self._actions(random.random(chances.shape) < chances)

    def mode(self, parameters: NumpyArray, mask: NumpyArray | None = None) -> NumpyArray:
        """The most likely action of each row: the bits that are more likely 1 than 0."""
        return self._actions(masked_array(parameters, mask) > 0)

    def tensor_sample(
        self, parameters: Tensor, generator: torch.Generator, mask: Tensor | None = None
    ) -> Tensor:
        """`sample` in torch."""
        chances = torch.sigmoid(masked(parameters, mask))
        bits = torch.rand(chances.shape, generator=generator, device=chances.device) < chances
        return bits.reshape(-1, *self._shape).to(torch.int8)

    def tensor_mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mode` in torch."""
        bits = masked(parameters, mask) > 0
        return bits.reshape(-1, *self._shape).to(torch.int8)

    def log_prob(self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-probability of each row's action: the sum over its bits."""
        logits = masked(parameters, mask)
        # A bit's share is -softplus(-logit) if it is 1 and -softplus(logit) if it is 0.
        signs = 1 - 2 * actions.reshape(actions.shape[0], -1).to(logits.dtype)
        return -functional.softplus(signs * logits).sum(-1)

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The entropy of each row: the sum over its bits."""
        logits = masked(parameters, mask)
        return (functional.softplus(logits) - logits * torch.sigmoid(logits)).sum(-1)

    def kl(self, parameters: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
        """The divergence of each row from the same row of `others`."""
        logits, against = masked(parameters, mask), masked(others, mask)
        apart = torch.sigmoid(logits) * (logits - against)
        return (apart + functional.softplus(against) - functional.softplus(logits)).sum(-1)

    def _actions(self, bits: NumpyArray) -> NumpyArray:
        return bits.reshape(-1, *self._shape).astype(self._dtype)


def _array_score(logits: Array, actions: Array) -> tuple[Any, Any]:
    """Log-probabilities of actions (n,) under logits (n, actions), and entropies, in two nodes.

    What log_softmax, gather and five more operations would give, at a fraction of their dispatch.
    """
    tape = logits.tape
    if actions.value.size and numpy.minimum.reduce(actions.value, None) < 0:
        raise UnsupportedError("an action below 0")
    # With a row for each action, reductions run along memory.
    turned = numpy.ascontiguousarray(logits.value.T)
    turned = turned - numpy.maximum.reduce(turned)
    p = numpy.exp(turned)
    total = numpy.add.reduce(p)
    p /= total
    logs = turned - numpy.log(total)
    entropies = -numpy.add.reduce(p * logs)
    chosen = actions.value, numpy.arange(len(entropies))
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
