"""Activations by name, each for torch and for NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray
from torch import nn

__all__ = ["ACTIVATIONS", "Array", "array_activation", "make_activation"]

Array: TypeAlias = "NDArray[Any]"

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
}


def make_activation(name: str) -> nn.Module:
    """A fresh activation layer."""
    return ACTIVATIONS[name]()


def array_activation(layer: nn.Module) -> Callable[[Array], Array] | None:
    """The same function on an array of its own, in place; None for a layer that is not known."""
    kind = type(layer)
    if kind is nn.Tanh:
        return _tanh
    if kind is nn.ReLU:
        return _relu()
    if kind is nn.SiLU:
        return _silu
    if isinstance(layer, nn.ELU) and kind is nn.ELU:
        return _elu(layer.alpha)
    if isinstance(layer, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return _leaky_relu(layer.negative_slope)
    return None


def _tanh(x: Array) -> Array:
    return numpy.tanh(x, out=x)


def _relu() -> Callable[[Array], Array]:
    zeros: Array = numpy.zeros(0)

    def relu(x: Array) -> Array:
        nonlocal zeros
        # The rows of one layer are always as wide.
        if len(zeros) != len(x):
            zeros = numpy.zeros_like(x)
        # Compared with an array of zeros, not with the number, in a fourth of the time.
        return numpy.maximum(x, zeros, out=x)

    return relu


def _silu(x: Array) -> Array:
    return numpy.multiply(x, sigmoid(x), out=x)


def _elu(alpha: float) -> Callable[[Array], Array]:
    def elu(x: Array) -> Array:
        below = numpy.expm1(numpy.minimum(x, 0))
        below *= alpha
        return numpy.add(numpy.maximum(x, 0, out=x), below, out=x)

    return elu


def _leaky_relu(slope: float) -> Callable[[Array], Array]:
    def leaky_relu(x: Array) -> Array:
        below = numpy.minimum(x, 0)
        below *= slope
        return numpy.add(numpy.maximum(x, 0, out=x), below, out=x)

    return leaky_relu


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), by way of tanh: nothing overflows."""
    half = numpy.tanh(x * 0.5)
    half += 1
    half *= 0.5
    return half
