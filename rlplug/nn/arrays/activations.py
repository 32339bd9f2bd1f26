"""Activations and their vector-Jacobian products."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy
import torch

from rlplug.nn.arrays.array import Array, accumulate, recorded, recording
from rlplug.nn.arrays.elementwise import floating, unary

__all__ = ["elu", "leaky_relu", "logsigmoid", "relu", "sigmoid", "silu", "softplus", "tanh"]

Value: TypeAlias = Any


def _tanh_vjp(g: Value, a: Value, out: Value) -> Value:
    grad = out * out
    if grad.ndim == 0:
        return (1 - grad) * g
    numpy.subtract(1, grad, out=grad)
    grad *= g
    return grad


def relu(x: Array) -> Array:
    """The positive part."""
    a = x.value
    # Compared with an array of zeros, not with the number, in a fourth of the time.
    out = numpy.maximum(a, x.tape.zeros(a))
    if not x.requires_grad or not torch.is_grad_enabled():
        return Array(out, x.tape)
    # A product, for numpy.where takes up to ten times as long.
    return recorded(out, x.tape, lambda g: accumulate(x, g * (out > 0)))


def _sigmoid(a: Value) -> Value:
    # By way of tanh: nothing overflows.
    return numpy.tanh(a * a.dtype.type(0.5)) * a.dtype.type(0.5) + a.dtype.type(0.5)


def _silu_vjp(g: Value, a: Value, out: Value) -> Value:
    share = _sigmoid(a)
    return g * (share * (1 + a * (1 - share)))


def _logsigmoid_vjp(g: Value, a: Value, out: Value) -> Value:
    return g * _sigmoid(-a)


tanh = unary(numpy.tanh, _tanh_vjp)
sigmoid = unary(_sigmoid, lambda g, a, out: g * (1 - out) * out)
silu = unary(lambda a: a * _sigmoid(a), _silu_vjp)
logsigmoid = unary(
    lambda a: numpy.minimum(a, a.dtype.type(0)) - numpy.log1p(numpy.exp(-numpy.abs(a))),
    _logsigmoid_vjp,
)


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """log(1 + exp(x)), and x itself where that is the same."""
    x = floating(x)
    a = x.value
    kind = a.dtype.type
    scaled = a * kind(beta)
    far = scaled > threshold
    grown = numpy.exp(numpy.where(far, kind(0), scaled))
    out = numpy.where(far, a, numpy.log1p(grown) / kind(beta))[()]
    if not recording(x):
        return Array(out, x.tape)
    return recorded(
        out, x.tape, lambda g: accumulate(x, numpy.where(far, g, g * (grown / (grown + 1))))
    )


def elu(x: Array, alpha: float = 1.0) -> Array:
    """The number if it is positive, else alpha times exp(x) - 1."""
    a = x.value
    kind = a.dtype.type
    low = a <= 0
    below = numpy.expm1(numpy.minimum(a, kind(0))) * kind(alpha)
    out = numpy.where(low, below, a)[()]
    if not recording(x):
        return Array(out, x.tape)
    return recorded(
        out, x.tape, lambda g: accumulate(x, numpy.where(low, g * (below + kind(alpha)), g))
    )


def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """The number if it is positive, else a small part of it."""
    a = x.value
    factor = numpy.where(a > 0, a.dtype.type(1), a.dtype.type(negative_slope))
    out = a * factor
    if not recording(x):
        return Array(out, x.tape)
    return recorded(out, x.tape, lambda g: accumulate(x, g * factor))
