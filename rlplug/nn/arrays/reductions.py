"""Sums, means, extremes and softmax along dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy
import torch

from rlplug.nn.arrays.array import Array, UnsupportedError, accumulate, recorded, recording
from rlplug.nn.arrays.dtypes import NUMPY_DTYPES
from rlplug.nn.arrays.elementwise import cast, floating
from rlplug.nn.arrays.selection import maximum, minimum

__all__ = [
    "all_true",
    "amax",
    "amin",
    "any_true",
    "argmax",
    "argmin",
    "cumsum",
    "log_softmax",
    "logsumexp",
    "mean",
    "norm",
    "softmax",
    "std",
    "total",
    "var",
    "x_max",
    "x_min",
]

Value: TypeAlias = Any
Dims: TypeAlias = "int | Sequence[int] | None"

_sum: Callable[..., Any] = numpy.add.reduce
_max: Callable[..., Any] = numpy.maximum.reduce
_all: Callable[..., Any] = numpy.logical_and.reduce
_any: Callable[..., Any] = numpy.logical_or.reduce


class Extremes(NamedTuple):
    """The largest or smallest numbers along a dimension, and where they are."""

    values: Array
    indices: Array


def total(x: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """The sum."""
    x = cast(x, NUMPY_DTYPES[dtype]) if dtype is not None else x
    a = x.value
    axes = _axes(a, dim)
    wide = None if a.dtype.kind == "f" else numpy.int64
    out = _sum(a, axes, wide, keepdims=keepdim)
    if not recording(x):
        return Array(out, x.tape)
    return recorded(out, x.tape, lambda g: accumulate(x, _spread(g, a, axes, keepdim)))


def mean(x: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """The mean."""
    x = cast(x, NUMPY_DTYPES[dtype]) if dtype is not None else x
    a = x.value
    if a.dtype.kind != "f":
        raise UnsupportedError("a mean of whole numbers")
    if dim is None and not keepdim:
        axes = None
        count = a.dtype.type(a.size)
        out = _sum(a, None) / count
    else:
        axes = _axes(a, dim)
        count = a.dtype.type(_count(a, axes))
        out = _sum(a, axes, keepdims=keepdim) / count
    if not recording(x):
        return Array(out, x.tape)
    return recorded(out, x.tape, lambda g: accumulate(x, _spread(g / count, a, axes, keepdim)))


def var(
    x: Array,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Array:
    """The variance."""
    return _spreading(x, dim, unbiased, keepdim, correction, root=False)


def std(
    x: Array,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Array:
    """The standard deviation."""
    return _spreading(x, dim, unbiased, keepdim, correction, root=True)


def _spreading(
    x: Array, dim: Any, unbiased: bool, keepdim: bool, correction: float | None, *, root: bool
) -> Array:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    a = x.value
    kind = a.dtype.type
    if a.dtype.kind != "f":
        raise UnsupportedError("a variance of whole numbers")
    axes = _axes(a, dim)
    count = _count(a, axes)
    whole = axes is None and not keepdim
    away = a - (_sum(a, None) if whole else _sum(a, axes, keepdims=True)) / kind(count)
    free = kind(max(count - (int(unbiased) if correction is None else correction), 0))
    squares = away * away
    out = (_sum(squares, None) if whole else _sum(squares, axes, keepdims=keepdim)) / free
    if root:
        out = numpy.sqrt(out)
    if not recording(x):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        g = numpy.where(out == 0, kind(0), g / (out * free)) if root else g * (kind(2) / free)
        accumulate(x, _lengthened(g, a, axes, keepdim) * away)

    return recorded(out, x.tape, back)


def norm(x: Array, p: Any = 2, dim: Dims = None, keepdim: bool = False) -> Array:
    """The Euclidean norm."""
    if p not in (2, 2.0, "fro"):
        raise UnsupportedError(f"norm {p!r}")
    a = x.value
    axes = _axes(a, dim)
    out = numpy.sqrt(_sum(a * a, axes, keepdims=keepdim))
    if not recording(x):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        length = _lengthened(out, a, axes, keepdim)
        share = numpy.where(length == 0, a.dtype.type(0), a / length)
        accumulate(x, _lengthened(g, a, axes, keepdim) * share)

    return recorded(out, x.tape, back)


def amax(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """The largest numbers; equal ones share the gradient."""
    return _extreme(x, dim, keepdim, numpy.maximum.reduce)


def amin(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """The smallest numbers; equal ones share the gradient."""
    return _extreme(x, dim, keepdim, numpy.minimum.reduce)


def _extreme(x: Array, dim: Dims, keepdim: bool, reduce: Callable[..., Value]) -> Array:
    a = x.value
    axes = _axes(a, dim)
    out = reduce(a, axes, keepdims=keepdim)
    if not recording(x):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        same = a == _lengthened(out, a, axes, keepdim)
        counts = _sum(same, axes, numpy.int64, keepdims=True).astype(a.dtype)
        accumulate(x, same * (_lengthened(g, a, axes, keepdim) / counts))

    return recorded(out, x.tape, back)


def x_max(x: Array, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The largest of all; with a dim also where; with an array that of each pair."""
    if other is not None or not (dim is None or isinstance(dim, int)):
        return maximum(x, dim if other is None else other)
    return amax(x) if dim is None else _found(x, dim, keepdim, numpy.argmax)


def x_min(x: Array, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The smallest of all; with a dim also where; with an array that of each pair."""
    if other is not None or not (dim is None or isinstance(dim, int)):
        return minimum(x, dim if other is None else other)
    return amin(x) if dim is None else _found(x, dim, keepdim, numpy.argmin)


def _found(x: Array, dim: int, keepdim: bool, find: Callable[..., Value]) -> Extremes:
    a = x.value
    if not a.ndim:
        raise UnsupportedError("an extreme along a dimension of a single number")
    kept = numpy.expand_dims(find(a, dim), dim)
    indices = Array(kept if keepdim else kept.squeeze(dim), x.tape)
    values = numpy.take_along_axis(a, kept, dim)
    out = values if keepdim else values.squeeze(dim)
    if not recording(x):
        return Extremes(Array(out, x.tape), indices)

    def back(g: Value) -> None:
        grad = numpy.zeros_like(a)
        numpy.put_along_axis(grad, kept, g if keepdim else numpy.expand_dims(g, dim), dim)
        accumulate(x, grad)

    return Extremes(recorded(out, x.tape, back), indices)


def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Where the first of the largest is."""
    return _place(x, dim, keepdim, x.value.argmax)


def argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Where the first of the smallest is."""
    return _place(x, dim, keepdim, x.value.argmin)


def _place(x: Array, dim: int | None, keepdim: bool, find: Callable[..., Value]) -> Array:
    out = find(dim) if x.value.ndim else numpy.int64(0)
    if keepdim:
        shape = x.value.shape
        out = out.reshape((1,) * len(shape)) if dim is None else numpy.expand_dims(out, dim)
    return Array(out, x.tape)


def all_true(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Whether all are true."""
    return Array(_all(x.value, _axes(x.value, dim), keepdims=keepdim), x.tape)


def any_true(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Whether any is true."""
    return Array(_any(x.value, _axes(x.value, dim), keepdims=keepdim), x.tape)


def cumsum(x: Array, dim: int) -> Array:
    """The sums so far."""
    a = x.value
    wide = None if a.dtype.kind == "f" else numpy.int64
    out = numpy.cumsum(a, dim, wide) if a.ndim else _sum(a, None, wide)
    if not recording(x):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        accumulate(x, numpy.flip(numpy.cumsum(numpy.flip(g, dim), dim), dim) if a.ndim else g)

    return recorded(out, x.tape, back)


def log_softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """Log-softmax."""
    x = floating(x) if dtype is None else cast(x, NUMPY_DTYPES[dtype])
    a = x.value
    axis: int | None = dim if a.ndim else None
    if a.ndim == 2 and dim in (1, -1):
        # One column per row of the batch, as linear layers leave it: sums run along the memory.
        turned = a.T
        logs = turned - _max(turned)
        logs -= numpy.log(_sum(numpy.exp(logs)))
        out = logs.T
        axis = 1
    else:
        out = a - _max(a, axis, keepdims=True)
        out = out - numpy.log(_sum(numpy.exp(out), axis, keepdims=True))
    if not x.requires_grad or not torch.is_grad_enabled():
        return Array(out, x.tape)

    def back(g: Value) -> None:
        if axis == 1 and g.ndim == 2:
            grad = numpy.exp(out.T)
            grad *= _sum(g.T)
            numpy.subtract(g.T, grad, out=grad)
            accumulate(x, grad.T)
        else:
            accumulate(x, g - numpy.exp(out) * _sum(g, axis, keepdims=True))

    return recorded(out, x.tape, back)


def softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """Softmax."""
    x = floating(x) if dtype is None else cast(x, NUMPY_DTYPES[dtype])
    a = x.value
    axis = dim if a.ndim else None
    raised = numpy.exp(a - _max(a, axis, keepdims=True))
    out = raised / _sum(raised, axis, keepdims=True)
    if not x.requires_grad or not torch.is_grad_enabled():
        return Array(out, x.tape)

    def back(g: Value) -> None:
        grad = g * out
        accumulate(x, grad - out * _sum(grad, axis, keepdims=True))

    return recorded(out, x.tape, back)


def logsumexp(x: Array, dim: Dims, keepdim: bool = False) -> Array:
    """Log-sum-exp."""
    x = floating(x)
    a = x.value
    axes = _axes(a, dim)
    most = _max(a, axes, keepdims=True)
    most = numpy.where(numpy.isinf(most), a.dtype.type(0), most)
    kept = numpy.log(_sum(numpy.exp(a - most), axes, keepdims=True)) + most
    out = kept if keepdim else kept.reshape(_left(a.shape, axes))[()]
    if not recording(x):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        accumulate(x, numpy.exp(a - kept) * _lengthened(g, a, axes, keepdim))

    return recorded(out, x.tape, back)


def _axes(a: Value, dim: Dims) -> Any:
    """The axes as NumPy takes them; None for all."""
    if dim is None or not a.ndim:
        return None
    if isinstance(dim, int):
        return dim
    return tuple(dim) if len(dim) else None


def _count(a: Value, axes: Any) -> int:
    if axes is None:
        size: int = a.size
        return size
    if isinstance(axes, int):
        rows: int = a.shape[axes]
        return rows
    count = 1
    for axis in axes:
        count *= a.shape[axis]
    return count


def _left(shape: tuple[int, ...], axes: Any) -> tuple[int, ...]:
    """A shape without some axes."""
    if axes is None:
        return ()
    gone = {axis % len(shape) for axis in ((axes,) if isinstance(axes, int) else axes)}
    return tuple(n for axis, n in enumerate(shape) if axis not in gone)


def _lengthened(g: Value, a: Value, axes: Any, keepdim: bool) -> Value:
    """What a reduction gave, with the axes that it took away, each of length 1."""
    if keepdim or not g.ndim or axes is None:
        return g
    if axes == a.ndim - 1 or axes == -1:
        return g[..., None]
    gone = {axis % a.ndim for axis in ((axes,) if isinstance(axes, int) else axes)}
    return g.reshape([1 if axis in gone else n for axis, n in enumerate(a.shape)])


def _spread(g: Value, a: Value, axes: Any, keepdim: bool) -> Value:
    """The same number for all that were summed."""
    out = numpy.empty_like(a)
    if g.ndim:
        out[...] = _lengthened(g, a, axes, keepdim)
    else:
        out.fill(g)
    return out
