"""Linear layers with tanh or ReLU in NumPy, forward and backward.

Arrays lie with one column per row of the batch, so that no product has to turn its operands, and
are computed in blocks that fit the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy
import torch
from torch import Tensor, nn

from rlplug.nn.activations import Array

__all__ = ["Stack", "Tape", "read_layers"]


@attrs.frozen
class Bend:
    """An activation: in place, its slope times a gradient, and how autograd knows it."""

    apply: Callable[[Array, Array], Any]
    """Given what to bend, and zeros of the same shape."""
    slope: Callable[[Array, Array], Array]
    """From what it gave and the gradient of that to the gradient of what it was given."""
    traced: Callable[[Tensor], Tensor]


Layers: TypeAlias = "tuple[list[nn.Linear], list[Bend | None]]"
"""Linear layers, and the activation after each."""

Tape: TypeAlias = "list[tuple[slice, list[Array]]]"
"""For each block of rows the outputs of every layer, shape (width, rows)."""

_NUMBERS_IN_CACHE = 65_536
"""Numbers of one array in a block: a few arrays of so many stay in the second-level cache."""


class Stack:
    """Linear layers, what bends their outputs, and what they do to rows."""

    __slots__ = (
        "_columns",
        "_ones",
        "_size",
        "_turned",
        "_weights",
        "_widest",
        "_zeros",
        "bends",
        "params",
    )

    def __init__(self, layers: Layers) -> None:
        linear, self.bends = layers
        self.params = [param for layer in linear for param in (layer.weight, layer.bias)]
        """Weights and biases in turn; arrays show their memory."""
        arrays = [param.detach().numpy() for param in self.params]
        self._weights = arrays[::2]
        self._turned = [weight.T for weight in self._weights]
        self._columns = [bias[:, None] for bias in arrays[1::2]]
        self._widest = max(map(len, arrays))
        self._size = max(64, _NUMBERS_IN_CACHE // self._widest)
        self._ones = numpy.ones(0, arrays[0].dtype)
        self._zeros = numpy.zeros((0, 0), arrays[0].dtype)

    def forward(self, features: Array) -> tuple[Array, Tape]:
        """From shape (rows, inputs) to (outputs, rows), and what `backward` needs to know."""
        blocks = self._blocks(len(features))
        if len(blocks) == 1:
            outs = self._outputs(features)
            return outs[-1], [(blocks[0], outs)]
        last = self._room(features)
        tape: Tape = []
        for rows in blocks:
            outs = self._outputs(features[rows])
            last[:, rows] = outs[-1]
            tape.append((rows, outs))
        return last, tape

    def last_outputs(self, features: Array) -> Array:
        """The same where nobody goes back: nothing else is kept."""
        blocks = self._blocks(len(features))
        if len(blocks) == 1:
            return self._outputs(features)[-1]
        last = self._room(features)
        for rows in blocks:
            last[:, rows] = self._outputs(features[rows])[-1]
        return last

    def backward(
        self,
        features: Array,
        tape: Tape,
        below: Array,
        *,
        own: bool = False,
        into: Sequence[Array] | None = None,
    ) -> tuple[Sequence[Array], Array | None]:
        """Gradients of weights and biases in turn, given that of the outputs, (outputs, rows).

        With `own`, that of the features as well, (rows, inputs). `into` are arrays to write to.
        """
        if into is None:
            into = [numpy.empty(param.shape, features.dtype) for param in self.params]
        if len(tape) == 1:
            mine = self._slopes(features, tape[0][1], below, into, own=own)
            return into, None if mine is None else mine.T
        wanted = numpy.empty_like(features) if own else None
        sums = into
        for rows, outs in tape:
            mine = self._slopes(features[rows], outs, below[:, rows], into, own=own)
            if wanted is not None and mine is not None:
                wanted[rows] = mine.T
            if into is sums:
                into = [numpy.empty_like(one) for one in sums]
                continue
            for total, more in zip(sums, into, strict=True):
                total += more
        return sums, wanted

    def _blocks(self, rows: int) -> list[slice]:
        size = self._size
        if rows <= 2 * size:
            return [slice(0, rows)]
        return [slice(start, start + size) for start in range(0, rows, size)]

    def _room(self, features: Array) -> Array:
        return numpy.empty((len(self._columns[-1]), len(features)), features.dtype)

    def _outputs(self, features: Array) -> list[Array]:
        block = features.T
        outs = []
        if self._zeros.shape[1] != len(features):
            self._zeros = numpy.zeros((self._widest, len(features)), self._zeros.dtype)
        for weight, column, bend in zip(self._weights, self._columns, self.bends, strict=True):
            block = weight.dot(block)
            block += column
            if bend is not None:
                bend.apply(block, self._zeros[: len(block)])
            outs.append(block)
        return outs

    def _slopes(
        self,
        features: Array,
        outs: Sequence[Array],
        below: Array,
        into: Sequence[Array],
        *,
        own: bool,
    ) -> Array | None:
        rows = below.shape[1]
        if len(self._ones) != rows:
            self._ones = numpy.ones(rows, below.dtype)
        for index in range(len(outs) - 1, -1, -1):
            bend = self.bends[index]
            if bend is not None:
                below = bend.slope(outs[index], below)
            known = outs[index - 1].T if index else features
            below.dot(known, out=into[2 * index])
            # A product with ones is a sum over the rows, in a third of the time.
            below.dot(self._ones, out=into[2 * index + 1])
            if index or own:
                below = self._turned[index].dot(below)
        return below if own else None


def read_layers(layers: Iterable[nn.Module]) -> Layers | None:
    """Linear layers with biases, and known activations after some; None if there is more."""
    linear: list[nn.Linear] = []
    bends: list[Bend | None] = []
    for layer in layers:
        if type(layer) is nn.Linear and layer.bias is not None:
            linear.append(layer)
            bends.append(None)
        elif type(layer) in BENDS and bends and bends[-1] is None:
            bends[-1] = BENDS[type(layer)]
        else:
            return None
    return (linear, bends) if linear else None


def _tanh_slope(out: Array, gradient: Array) -> Array:
    slope = out * out
    numpy.subtract(1, slope, out=slope)
    slope *= gradient
    return slope


BENDS: dict[type[nn.Module], Bend] = {
    nn.Tanh: Bend(lambda array, zeros: numpy.tanh(array, out=array), _tanh_slope, torch.tanh),
    nn.ReLU: Bend(
        # Compared with an array of zeros, not with the number, in a fourth of the time.
        lambda array, zeros: numpy.maximum(array, zeros, out=array),
        lambda out, gradient: gradient * (out > 0),
        torch.relu,
    ),
}
"""The activations whose slopes are known from their outputs."""
