"""Products, layers and losses: what `torch.nn.functional` has for small networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy
import torch

from rlplug.nn.arrays.activations import softplus
from rlplug.nn.arrays.array import Array, UnsupportedError, accumulate, recorded, recording
from rlplug.nn.arrays.elementwise import (
    absolute,
    add,
    as_array,
    multiply,
    negative,
    operands,
    square,
    subtract,
    tape_of,
)
from rlplug.nn.arrays.indexing import gather, refuse_negative
from rlplug.nn.arrays.reductions import log_softmax, mean, total
from rlplug.nn.arrays.shapes import reshape, unsqueeze

__all__ = [
    "binary_cross_entropy_with_logits",
    "categorical_score",
    "cross_entropy",
    "dropout",
    "huber_loss",
    "l1_loss",
    "layer_norm",
    "linear",
    "matmul",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
    "squashed_draw",
]

Value: TypeAlias = Any

_LOG_2 = math.log(2)
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def linear(input: Any, weight: Any, bias: Any = None) -> Array:
    """x Wᵀ + b; what comes out lies with one column per row of the batch."""
    graph = input.tape if type(input) is Array else tape_of(weight, bias)
    x = input if type(input) is Array else graph.leaf(input)
    w = weight if type(weight) is Array else graph.leaf(weight)
    b = bias if bias is None or type(bias) is Array else graph.leaf(bias)
    a, known = x.value, w.value
    if a.ndim != 2:
        rows = reshape(x, (-1, a.shape[-1]))
        return reshape(linear(rows, w, b), (*a.shape[:-1], known.shape[0]))
    if a.dtype is not known.dtype:
        raise UnsupportedError(f"linear of {a.dtype} with weights of {known.dtype}")
    out = known.dot(a.T)
    if b is not None:
        out += b.value[:, None]
    if not torch.is_grad_enabled() or not (
        w.requires_grad or x.requires_grad or (b is not None and b.requires_grad)
    ):
        return Array(out.T, graph)

    def back(g: Value) -> None:
        below = g.T
        if w.requires_grad:
            if w.grad_view is not None and w.grad is None:
                w.grad = below.dot(x.value, w.grad_view)
            else:
                accumulate(w, below.dot(x.value))
        if b is not None and b.requires_grad:
            # A product with ones is a sum over the rows, in a third of the time.
            ones = x.tape.ones(len(g), g.dtype)
            if b.grad_view is not None and b.grad is None:
                b.grad = below.dot(ones, b.grad_view)
            else:
                accumulate(b, below.dot(ones))
        if x.requires_grad:
            accumulate(x, w.value.T.dot(below).T)

    made = Array(out.T, graph, True)
    graph.nodes.append((made, back))
    return made


def matmul(x: Any, y: Any) -> Array:
    """x @ y."""
    tape = tape_of(x, y)
    x, y = as_array(tape, x), as_array(tape, y)
    a, b = x.value, y.value
    if a.dtype != b.dtype or a.dtype.kind != "f":
        raise UnsupportedError(f"a product of {a.dtype} and {b.dtype}")
    out = numpy.matmul(a, b)
    if not recording(x, y):
        return Array(out, tape)

    def back(g: Value) -> None:
        left = a[None, :] if a.ndim == 1 else a
        right = b[:, None] if b.ndim == 1 else b
        grad = g[..., None] if b.ndim == 1 else g
        grad = grad[..., None, :] if a.ndim == 1 else grad
        if x.requires_grad:
            mine = numpy.matmul(grad, right.swapaxes(-1, -2))
            accumulate(x, mine[..., 0, :] if a.ndim == 1 else mine)
        if y.requires_grad:
            mine = numpy.matmul(left.swapaxes(-1, -2), grad)
            accumulate(y, mine[..., 0] if b.ndim == 1 else mine)

    return recorded(out, tape, back)


def categorical_score(logits: Array, actions: Array) -> tuple[Any, Any]:
    """Log-probabilities of actions (n,) under logits (n, actions), and entropies, in two nodes.

    What log_softmax, gather and five more operations would give, at a fraction of their dispatch.
    """
    graph = logits.tape
    refuse_negative(actions.value)
    # With a row for each action, reductions run along memory.
    turned = numpy.ascontiguousarray(logits.value.T)
    turned = turned - numpy.maximum.reduce(turned)
    p = numpy.exp(turned)
    total = numpy.add.reduce(p)
    p /= total
    logs = turned - numpy.log(total)
    chosen = actions.value, graph.counted(logits.value.shape[0])
    entropies = -numpy.add.reduce(p * logs)
    if not recording(logits):
        return Array(logs[chosen], graph), Array(entropies, graph)

    def log_prob_back(g: Value) -> None:
        # d log p(a) / d logits = [a] - p
        grad = p * -g
        grad[chosen] += g
        accumulate(logits, grad.T)

    def entropy_back(g: Value) -> None:
        # d H / d logits = -p (log p + H)
        accumulate(logits, (p * ((logs + entropies) * -g)).T)

    return recorded(logs[chosen], graph, log_prob_back), recorded(entropies, graph, entropy_back)


def squashed_draw(parameters: Array, noise: Value, low: float, high: float) -> tuple[Any, Any]:
    """tanh(mean + deviation · noise), shape (n, k), and its log-densities (n,), in two nodes.

    The parameters are k means, then k logarithms of deviations, which are held between `low` and
    `high`. Twenty operations one by one would give the same.
    """
    graph = parameters.tape
    turned, along = parameters.value.T, noise.T
    k = len(turned) // 2
    raw = turned[k:]
    log_std = raw.clip(low, high)
    moved = numpy.exp(log_std) * along
    drawn = turned[:k] + moved
    actions = numpy.tanh(drawn)
    far = numpy.abs(drawn)
    # Minus the logarithm of the slope of tanh, without cancellation far from 0.
    flat = 2 * (far + numpy.log1p(numpy.exp(-2 * far)) - _LOG_2)
    logs = numpy.add.reduce(flat - 0.5 * along * along - log_std)
    logs -= k * _HALF_LOG_TAU
    if not recording(parameters):
        return Array(actions.T, graph), Array(logs, graph)
    inside = log_std == raw

    def back(below: Value, direct: Value) -> None:
        grad = numpy.empty_like(turned)
        grad[:k] = below
        numpy.multiply(below, moved, out=grad[k:])
        grad[k:] -= direct
        grad[k:] *= inside
        accumulate(parameters, grad.T)

    return (
        recorded(actions.T, graph, lambda g: back(g.T * (1 - actions * actions), 0)),
        recorded(logs, graph, lambda g: back(2 * actions * g, g)),
    )


def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Array:
    """Each row to mean 0 and variance 1, then scaled and shifted."""
    tape = tape_of(input, weight, bias)
    x = as_array(tape, input)
    a = x.value
    axes = tuple(range(-len(normalized_shape), 0))
    if a.shape[axes[0] :] != tuple(normalized_shape):
        raise UnsupportedError("layer_norm over another shape")
    count = a.dtype.type(numpy.prod(normalized_shape))
    away = a - numpy.add.reduce(a, axes, keepdims=True) / count
    spread = numpy.add.reduce(away * away, axes, keepdims=True) / count
    scale = 1 / numpy.sqrt(spread + a.dtype.type(eps))
    out = away * scale

    def back(g: Value) -> None:
        middle = numpy.add.reduce(g, axes, keepdims=True) / count
        along = numpy.add.reduce(g * out, axes, keepdims=True) / count
        accumulate(x, (g - middle - out * along) * scale)

    result = recorded(out, tape, back) if recording(x) else Array(out, tape)
    if weight is not None:
        result = multiply(result, weight)
    return result if bias is None else add(result, bias)


def dropout(input: Array, p: float = 0.5, training: bool = True, inplace: bool = False) -> Array:
    """The input: nothing is dropped in evaluation."""
    if training and p > 0:
        raise UnsupportedError("dropout in training")
    return input


def _reduced(rows: Array, size_average: Any, reduce: Any, reduction: str) -> Array:
    if size_average is not None or reduce is not None:
        raise UnsupportedError("size_average and reduce")
    if reduction == "mean":
        return mean(rows)
    if reduction == "sum":
        return total(rows)
    if reduction == "none":
        return rows
    raise UnsupportedError(f"reduction {reduction!r}")


def mse_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Array:
    """Squared errors."""
    rows = square(subtract(input, target))
    if weight is not None:
        raise UnsupportedError("mse_loss with weights")
    return _reduced(rows, size_average, reduce, reduction)


def l1_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Array:
    """Absolute errors."""
    if weight is not None:
        raise UnsupportedError("l1_loss with weights")
    return _reduced(absolute(subtract(input, target)), size_average, reduce, reduction)


def smooth_l1_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Array:
    """Squared errors below beta, absolute ones above; the slope of the latter is 1."""
    if beta == 0:
        return l1_loss(input, target, size_average, reduce, reduction)
    rows = _huber(input, target, beta, 1 / beta)
    return _reduced(rows, size_average, reduce, reduction)


def huber_loss(
    input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Array:
    """Squared errors below delta, absolute ones above; the slope of the latter is delta."""
    if weight is not None:
        raise UnsupportedError("huber_loss with weights")
    return _reduced(_huber(input, target, delta, 1.0), None, None, reduction)


def _huber(input: Any, target: Any, edge: float, scale: float) -> Array:
    """scale times half the square of errors within an edge, and straight lines beyond."""
    x, y = operands(input, target)
    kind = x.value.dtype.type
    away = x.value - y.value
    limit = kind(edge)
    # Within the edge both factors are the error; beyond, one is the edge.
    held = numpy.minimum(numpy.maximum(away, -limit), limit)
    out = held * (away - held * kind(0.5))
    if scale != 1:
        out = out * kind(scale)
    if not recording(x, y):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        grad = g * held
        if scale != 1:
            grad = grad * kind(scale)
        accumulate(x, grad)
        if y.requires_grad:
            accumulate(y, -grad)

    return recorded(out, x.tape, back)


def binary_cross_entropy_with_logits(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Array:
    """-log of the probability of targets between 0 and 1."""
    if weight is not None or pos_weight is not None:
        raise UnsupportedError("weights of a cross entropy")
    x, y = operands(input, target)
    # softplus(x) - x y, where softplus(x) = softplus(-x) + x keeps what is small exact.
    rows = add(softplus(negative(x), threshold=float("inf")), multiply(subtract(1.0, y), x))
    return _reduced(rows, size_average, reduce, reduction)


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    """-log of the probability of classes, or against the probabilities of all classes."""
    tape = tape_of(input, target)
    x, y = as_array(tape, input), as_array(tape, target)
    if label_smoothing or weight is not None or x.value.ndim != 2:
        raise UnsupportedError("cross_entropy with other options")
    logs = log_softmax(x, 1)
    if y.value.dtype.kind != "f":
        return nll_loss(logs, y, None, size_average, ignore_index, reduce, reduction)
    rows = negative(total(multiply(logs, y), 1))
    return _reduced(rows, size_average, reduce, reduction)


def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Array:
    """The negative of what belongs to each row's class."""
    tape = tape_of(input, target)
    x, y = as_array(tape, input), as_array(tape, target)
    if weight is not None or x.value.ndim != 2 or (y.value == ignore_index).any():
        raise UnsupportedError("nll_loss with other options")
    rows = negative(reshape(gather(x, 1, unsqueeze(y, 1)), (-1,)))
    return _reduced(rows, size_average, reduce, reduction)
