"""Linear layers and activations in NumPy, to act and to be trained, on the memory of a network.

What a small network costs is dispatch, layer by layer and operation by operation: here all plain
layers between two other things are one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy
import torch
from numpy.typing import NDArray
from torch import nn

from rlplug.nn.arrays.array import (
    Array,
    UnsupportedError,
    Value,
    accumulate,
    as_array,
    implement,
    recorded,
    tape_of,
)
from rlplug.nn.arrays.elementwise import sigmoid, tanh_slope
from rlplug.nn.arrays.shapes import reshape

__all__ = ["MLP", "Activation", "Layer", "NumpyArray", "activation_of", "is_sequential"]

NumpyArray: TypeAlias = "NDArray[Any]"


class Activation(NamedTuple):
    """An activation on an array of its own, in place, and the way back given what it gave."""

    apply: Callable[[Value], object]
    back: Callable[[Value, Value], Value] | None
    """From the gradient and what `apply` gave; None where that does not tell."""


class Layer(NamedTuple):
    """A linear layer and its activation."""

    weight: Value
    column: Value
    """The bias, with one number per row."""
    activation: Activation | None = None
    leaf: Array | None = None
    """Of what is on a tape: the weight, and the bias if there is one."""
    bias: Array | None = None


class MLP:
    """Layers one after the other, in one operation.

    Inside, rows of the batch lie side by side as columns: so no product turns its operands.
    """

    __slots__ = ("_is_trained", "_ones", "_plain", "_weights", "layers")

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.layers = tuple(layers)
        self._plain = [layer[:3] for layer in self.layers]
        self._weights = [layer.leaf for layer in self.layers if layer.leaf is not None]
        biases = [layer.bias for layer in self.layers if layer.bias is not None]
        self._is_trained = any(leaf.requires_grad for leaf in (*self._weights, *biases))
        self._ones = numpy.ones(0)

    def followed_by(self, layer: Layer | None, activation: Activation | None) -> MLP | None:
        """The same with one more layer, or with an activation at the end; None if it takes none."""
        if layer is not None:
            return MLP((*self.layers, layer))
        last = self.layers[-1]
        if activation is None or last.activation is not None:
            return None
        if activation.back is None and last.leaf is not None:
            return None
        return MLP((*self.layers[:-1], last._replace(activation=activation)))

    def __call__(self, features: Value) -> Value:
        """Shape (rows, inputs) to (rows, outputs)."""
        block = features.T
        for weight, column, activation in self._plain:
            block = weight.dot(block)
            if column is not None:
                block += column
            if activation is not None:
                activation.apply(block)
        return block.T

    def run(self, features: Array) -> Array:
        """The same as one node of a tape; rows may lie in several dimensions."""
        shape = features.value.shape
        if len(shape) != 2:
            rows = self.run(reshape(features, -1, shape[-1]))
            return reshape(rows, *shape[:-1], rows.value.shape[1])
        tape = features.tape
        if not self._is_recording(features):
            return Array(self(features.value), tape)
        block = features.value.T
        outs: list[Value] = []
        for weight, column, activation in self._plain:
            if len(weight) >= _WIDE and len(outs) == len(self._plain) - 1:
                # Row by row: what is wide is cut into parts, or multiplied in three dimensions.
                block = block.T.dot(weight.T).T
            else:
                block = weight.dot(block)
            if column is not None:
                block += column
            if activation is not None:
                activation.apply(block)
            outs.append(block)
        return recorded(block.T, tape, lambda g: self._back(features, outs, g.T))

    def _is_recording(self, features: Array) -> bool:
        return (self._is_trained or features.requires_grad) and torch.is_grad_enabled()

    def _back(self, features: Array, outs: list[Value], below: Value) -> None:
        rows: Value = None
        layers = self.layers
        if len(outs) > 1 and not any(leaf.requires_grad for leaf in self._weights):
            # Of the lower of two networks, each has a gradient in some of the rows only.
            reached = below.any(0).nonzero()[0]
            if len(reached) <= _FEW * below.shape[1]:
                rows, below = reached, below.take(reached, 1)
                outs = [out.take(reached, 1) for out in outs]
        if len(self._ones) != below.shape[1] or self._ones.dtype is not below.dtype:
            self._ones = numpy.ones(below.shape[1], below.dtype)
        for index in range(len(outs) - 1, -1, -1):
            weight, _, activation, leaf, bias = layers[index]
            if activation is not None and activation.back is not None:
                below = activation.back(below, outs[index])
            # A product with ones is a sum over the rows, in a third of the time.
            before = outs[index - 1].T if index else features.value
            for received, factor in ((leaf, before), (bias, self._ones)):
                if received is None or not received.requires_grad:
                    continue
                if received.grad is None and received.grad_view is not None:
                    received.grad = below.dot(factor, received.grad_view)
                else:
                    accumulate(received, below.dot(factor))
            if index:
                below = weight.T.dot(below)
        if not features.requires_grad:
            return
        weight = layers[0].weight
        # As the features lie: what lies otherwise is several times slower to multiply with.
        lie_in_columns = features.value.flags.f_contiguous
        gradient = weight.T.dot(below).T if lie_in_columns else below.T.dot(weight)
        if rows is not None:
            gradient, some = numpy.zeros_like(features.value), gradient
            gradient[rows] = some
        accumulate(features, gradient)


_WIDE = 32
"""Outputs from which rows lie together; fewer lie in columns, over which reductions are fast."""

_FEW = 0.75
"""The share of rows up to which going back through them alone is worth gathering them."""


def joined(
    layers: Iterable[nn.Module], read: Callable[[nn.Linear], Layer | None]
) -> list[MLP | nn.Module]:
    """Runs of plain layers as MLPs, and the layers between them; `read` reads linear ones."""
    steps: list[MLP | nn.Module] = []
    for module in flattened(layers):
        layer = read(module) if type(module) is nn.Linear else None
        last = steps[-1] if steps else None
        longer = last.followed_by(layer, activation_of(module)) if type(last) is MLP else None
        if longer is not None:
            steps[-1] = longer
        else:
            steps.append(module if layer is None else MLP([layer]))
    return steps


def flattened(layers: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """The layers with those that sequences among them are made of."""
    for layer in layers:
        if is_sequential(layer):
            yield from flattened(layer.children())
        else:
            yield layer


def is_sequential(module: nn.Module) -> bool:
    """Whether a module is nothing but its parts, one after the other."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def linear(input: Any, weight: Any, bias: Any = None) -> Array:
    """x Wᵀ + b; what comes out lies with one column per row of the batch."""
    tape = tape_of(input, weight, bias)
    key = id(weight), id(bias)
    known: MLP | None = tape.networks.get(key)
    x = as_array(tape, input)
    if known is None:
        w, b = as_array(tape, weight), None if bias is None else as_array(tape, bias)
        known = MLP([Layer(w.value, None if b is None else b.value[:, None], None, w, b)])
        if isinstance(weight, nn.Parameter) and (b is None or isinstance(bias, nn.Parameter)):
            tape.networks[key] = known
    if x.value.dtype is not known.layers[0].weight.dtype:
        raise UnsupportedError(f"linear of {x.value.dtype} with weights of another dtype")
    return known.run(x)


implement(linear=linear)


# -- activations -----------------------------------------------------------------------------------


def activation_of(layer: nn.Module) -> Activation | None:
    """The same function on arrays; None for a layer that is not known."""
    kind = type(layer)
    if kind is nn.Tanh:
        return Activation(lambda x: numpy.tanh(x, x), tanh_slope)
    if kind is nn.ReLU:
        return Activation(_relu(), lambda g, out: g * (out > 0))
    if kind is nn.SiLU:
        return Activation(lambda x: numpy.multiply(x, sigmoid(x), x), None)
    if isinstance(layer, nn.ELU) and kind is nn.ELU:
        return _below_zero(numpy.expm1, layer.alpha, lambda out: out + layer.alpha)
    if isinstance(layer, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return _below_zero(numpy.positive, layer.negative_slope, lambda out: layer.negative_slope)
    return None


def _relu() -> Callable[[NumpyArray], object]:
    zeros: NumpyArray = numpy.zeros(0)

    def relu(x: NumpyArray) -> None:
        nonlocal zeros
        if zeros.shape != x.shape:
            zeros = numpy.zeros_like(x)
        # Compared with an array of zeros, not with the number, in a fourth of the time.
        numpy.maximum(x, zeros, out=x)

    return relu


def _below_zero(function: Any, factor: float, slope: Callable[[Value], Value]) -> Activation:
    """Numbers above 0 as they are, below it a function of them times a positive factor."""

    def apply(x: NumpyArray) -> None:
        below = function(numpy.minimum(x, 0))
        below *= factor
        numpy.add(numpy.maximum(x, 0, out=x), below, out=x)

    def back(g: NumpyArray, out: NumpyArray) -> NumpyArray:
        gradient: NumpyArray = g * numpy.where(out > 0, out.dtype.type(1), slope(out))
        return gradient

    return Activation(apply, back if factor > 0 else None)
