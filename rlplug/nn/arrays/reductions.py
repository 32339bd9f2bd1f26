"""Sums, means and extremes along dimensions, softmax, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from rlplug.nn.arrays.array import (
    NUMPY_DTYPES,
    Array,
    Function,
    UnsupportedError,
    Value,
    accumulate,
    as_array,
    borrow,
    cast,
    implement,
    operands,
    recorded,
    recording,
    tape_of,
)
from rlplug.nn.arrays.elementwise import floating, maximum, minimum

__all__: list[str] = []

Dims: TypeAlias = "int | Sequence[int] | None"

_sum: Function = numpy.add.reduce
_max: Function = numpy.maximum.reduce

borrow(
    "amax amin argmin batch_norm binary_cross_entropy_with_logits bmm cross_entropy cumprod",
    "cumsum dropout einsum kl_div layer_norm logsumexp matmul max median min mse_loss",
    "nll_loss norm prod smooth_l1_loss sort std topk var",
)


def total(x: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """The sum."""
    x = cast(x, NUMPY_DTYPES[dtype]) if dtype is not None else x
    a = x.value
    axes = _axes(a, dim)
    wide = None if a.dtype.kind == "f" else numpy.int64
    out = _sum(a, axes, wide, keepdims=True) if keepdim else _summed(x, axes)
    if not recording(x):
        return Array(out, x.tape)
    return recorded(out, x.tape, lambda g: accumulate(x, _spread(g, a, axes, keepdim)))


def mean(x: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """The mean."""
    x = cast(x, NUMPY_DTYPES[dtype]) if dtype is not None else x
    a = x.value
    if a.dtype.kind != "f":
        raise UnsupportedError("a mean of whole numbers")
    axes = _axes(a, dim)
    count = a.dtype.type(a.size if axes is None else _count(a, axes))
    # NumPy reads `keepdims` in half a microsecond.
    out = (_sum(a, axes, keepdims=True) if keepdim else _summed(x, axes)) / count
    if not x.requires_grad or not torch.is_grad_enabled():
        return Array(out, x.tape)
    return recorded(out, x.tape, lambda g: accumulate(x, _spread(g / count, a, axes, keepdim)))


def _summed(x: Array, axes: Any) -> Value:
    a = x.value
    if a.dtype.kind != "f":
        return _sum(a, axes, numpy.int64)
    if a.ndim > 1 and a.size > _LARGE and axes in (-1, a.ndim - 1) and a.flags.c_contiguous:
        # A product with ones is a sum along short rows, in a fifth of the time.
        return a.dot(numpy.ones(a.shape[-1], a.dtype))
    return _sum(a, axes)


_LARGE = 4096


def _spread(g: Value, a: Value, axes: Any, keepdim: bool) -> Value:
    """The same number for all that were summed."""
    out = numpy.empty_like(a)
    if not g.ndim:
        out.fill(g)
    elif keepdim:
        out[...] = g
    elif axes == a.ndim - 1 or axes == -1:
        out[...] = g[..., None]
    else:
        out[...] = numpy.expand_dims(g, axes)
    return out


def std(x: Array, *options: Any, **named: Any) -> Array:
    """The standard deviation of all numbers; torch knows others, and gradients."""
    a = x.value
    if options or named or a.dtype.kind != "f" or a.size < 2 or recording(x):
        rare: Array = _std_in_torch(x, *options, **named)
        return rare
    kind = a.dtype.type
    away = a - _sum(a, None) / kind(a.size)
    return Array(numpy.sqrt(_sum(away * away, None) / kind(a.size - 1)), x.tape)


def matmul(x: Any, y: Any) -> Array:
    """x @ y; torch knows gradients but those of two matrices, or of a vector to the right."""
    tape = tape_of(x, y)
    x, y = as_array(tape, x), as_array(tape, y)
    a, b = x.value, y.value
    is_plain = b.ndim == 1 or a.ndim == b.ndim == 2
    if a.dtype is not b.dtype or (recording(x, y) and not is_plain):
        product: Array = _matmul_in_torch(x, y)
        return product
    if not recording(x, y):
        return Array(numpy.matmul(a, b), tape)

    def back(g: Value) -> None:
        if b.ndim == 1:
            accumulate(x, g[..., None] * b)
            accumulate(y, g[..., None] * a)
        else:
            accumulate(x, g.dot(b.T))
            accumulate(y, a.T.dot(g))

    return recorded(a.dot(b), tape, back)


def _extremes(of_pairs: Function, in_torch: Function) -> Function:
    """The larger or smaller of each pair; torch knows the rest."""

    def function(x: Array, *options: Any, other: Any = None, **named: Any) -> Any:
        second = options[0] if options else other
        if isinstance(second, Array | Tensor):
            return of_pairs(x, second)
        return in_torch(x, *options, **named)

    return function


def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Where the first of the largest numbers is."""
    out = x.value.argmax(dim, keepdims=keepdim) if x.value.ndim else numpy.int64(0)
    return Array(out, x.tape)


def _truths(reduce: Function) -> Function:
    """Whether all or any are true."""
    return lambda x, dim=None, keepdim=False: Array(
        reduce(x.value, _axes(x.value, dim), keepdims=keepdim), x.tape
    )


def _axes(a: Value, dim: Dims) -> Any:
    """The axes as NumPy takes them; None for all."""
    if dim is None or not a.ndim:
        return None
    if isinstance(dim, int):
        return dim
    return tuple(dim) if len(dim) else None


def _count(a: Value, axes: Any) -> int:
    count = 1
    for axis in (axes,) if isinstance(axes, int) else axes:
        count *= a.shape[axis]
    return count


# -- softmax ---------------------------------------------------------------------------------------


def log_softmax(x: Array, dim: Any = None, *, dtype: Any = None, _stacklevel: int = 3) -> Array:
    """Log-softmax."""
    x = floating(x) if dtype is None else cast(x, NUMPY_DTYPES[dtype])
    a = x.value
    axis = _softmax_axis(a, dim)
    if a.ndim == 2 and axis in (1, -1):
        # One column per row of the batch, as linear layers leave it: sums run along the memory.
        turned = a.T
        logs = turned - _max(turned)
        logs -= numpy.log(_sum(numpy.exp(logs)))
        out = logs.T
    else:
        out = a - _max(a, axis, keepdims=True)
        out = out - numpy.log(_sum(numpy.exp(out), axis, keepdims=True))
    if not recording(x):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        accumulate(x, g - numpy.exp(out) * _sum(g, axis, keepdims=True))

    return recorded(out, x.tape, back)


def softmax(x: Array, dim: Any = None, *, dtype: Any = None, _stacklevel: int = 3) -> Array:
    """Softmax."""
    x = floating(x) if dtype is None else cast(x, NUMPY_DTYPES[dtype])
    a = x.value
    axis = _softmax_axis(a, dim)
    raised = numpy.exp(a - _max(a, axis, keepdims=True))
    out = raised / _sum(raised, axis, keepdims=True)
    if not recording(x):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        grad = g * out
        accumulate(x, grad - out * _sum(grad, axis, keepdims=True))

    return recorded(out, x.tape, back)


def _softmax_axis(a: Value, dim: Any) -> Any:
    if dim is None:
        raise UnsupportedError("softmax without a dim")
    return dim if a.ndim else None


# -- losses ----------------------------------------------------------------------------------------


def mse_loss(input: Any, target: Any, *args: Any, reduction: str = "mean", **options: Any) -> Array:
    """Squared errors; torch knows what is rarer than their mean."""
    if args or reduction != "mean" or any(option is not None for option in options.values()):
        rare: Array = _mse_in_torch(input, target, *args, reduction=reduction, **options)
        return rare
    x, y = operands(input, target)
    away = x.value - y.value
    squares = away * away
    count = squares.dtype.type(squares.size)
    out = _sum(squares, None) / count
    if not recording(x, y):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        gradient = g / count * (away + away)
        accumulate(x, gradient)
        if y.requires_grad:
            accumulate(y, -gradient)

    return recorded(out, x.tape, back)


def smooth_l1_loss(
    input: Any, target: Any, *old: Any, reduction: str = "mean", beta: float = 1.0, **none: Any
) -> Array:
    """Squared errors below 1, absolute ones above; torch knows other edges."""
    if beta == 1:
        return huber_loss(input, target, reduction)
    rare: Array = _smooth_l1_in_torch(input, target, reduction=reduction, beta=beta)
    return rare


def huber_loss(
    input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Array:
    """Squared errors below delta, absolute ones above; the slope of the latter is delta."""
    if weight is not None:
        raise UnsupportedError("weights within a loss")
    x, y = operands(input, target)
    edge = x.value.dtype.type(delta)
    away = x.value - y.value
    # Within the edge both factors are the error; beyond, one is the edge.
    held = away.clip(-edge, edge)
    out = held * edge.dtype.type(-0.5)
    out += away
    out *= held
    rows = Array(out, x.tape)
    if recording(x, y):

        def back(g: Value) -> None:
            grad = g * held
            accumulate(x, grad)
            if y.requires_grad:
                accumulate(y, -grad)

        rows = recorded(out, x.tape, back)
    if reduction == "none":
        return rows
    return mean(rows) if reduction == "mean" else total(rows)


_std_in_torch = Array.functions[torch.std]
_matmul_in_torch = Array.functions[torch.matmul]
_mse_in_torch = Array.functions[functional.mse_loss]
_smooth_l1_in_torch = Array.functions[functional.smooth_l1_loss]

implement(
    all=_truths(numpy.logical_and.reduce),
    any=_truths(numpy.logical_or.reduce),
    argmax=argmax,
    huber_loss=huber_loss,
    log_softmax=log_softmax,
    matmul=matmul,
    __matmul__=matmul,
    __rmatmul__=lambda x, y: matmul(y, x),
    max=_extremes(maximum, Array.functions[torch.max]),
    mean=mean,
    min=_extremes(minimum, Array.functions[torch.min]),
    mse_loss=mse_loss,
    smooth_l1_loss=smooth_l1_loss,
    softmax=softmax,
    std=std,
    sum=total,
)
