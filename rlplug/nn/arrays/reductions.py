"""Sums, means and extremes along dimensions, softmax, norms, and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy
import torch

from rlplug.nn.arrays.array import (
    NUMPY_DTYPES,
    Array,
    Function,
    UnsupportedError,
    Value,
    accumulate,
    as_array,
    cast,
    implement,
    operands,
    recorded,
    recording,
    tape_of,
)
from rlplug.nn.arrays.elementwise import (
    add,
    floating,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    square,
    subtract,
)
from rlplug.nn.arrays.shapes import gather, unsqueeze

__all__: list[str] = []

Dims: TypeAlias = "int | Sequence[int] | None"

_sum: Function = numpy.add.reduce
_max: Function = numpy.maximum.reduce


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
    out = _sum(a, axes, wide, keepdims=True) if keepdim else _summed(x, axes)
    if not recording(x):
        return Array(out, x.tape)
    return recorded(out, x.tape, lambda g: accumulate(x, _spread(g, a, axes, keepdim)))


def _summed(x: Array, axes: Any) -> Value:
    a = x.value
    if a.dtype.kind != "f":
        return _sum(a, axes, numpy.int64)
    if a.ndim > 1 and a.size > _LARGE and axes in (-1, a.ndim - 1) and a.flags.c_contiguous:
        # A product with ones is a sum along short rows, in a fifth of the time.
        return a.dot(x.tape.ones(a.shape[-1], a.dtype))
    return _sum(a, axes)


_LARGE = 4096


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


def _spreads(root: bool) -> Function:
    """The variance, or its root."""

    def function(
        x: Array,
        dim: Any = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: float | None = None,
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

    return function


def _extremes(reduce: Function, find: Function, of_pairs: Function) -> tuple[Function, Function]:
    """The most of all; along a dimension also where it is; with an array that of each pair."""

    def alone(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
        # Equal ones share the gradient.
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

    def located(x: Array, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        if other is not None or not (dim is None or isinstance(dim, int)):
            return of_pairs(x, dim if other is None else other)
        if dim is None:
            return alone(x)
        a = x.value
        if not a.ndim:
            raise UnsupportedError("an extreme along a dimension of a single number")
        kept = numpy.expand_dims(find(a, dim), dim)
        indices = Array(kept, x.tape)
        values = gather(x, dim, indices)
        if keepdim:
            return Extremes(values, indices)
        return Extremes(values.squeeze(dim), indices.squeeze(dim))

    return alone, located


def _places(find: Function) -> Function:
    """Where the first of the most is."""

    def function(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        out = find(x.value, dim, keepdims=keepdim) if x.value.ndim else numpy.int64(0)
        return Array(out, x.tape)

    return function


def _truths(reduce: Function) -> Function:
    """Whether all or any are true."""
    return lambda x, dim=None, keepdim=False: Array(
        reduce(x.value, _axes(x.value, dim), keepdims=keepdim), x.tape
    )


def sort(x: Array, dim: int = -1, descending: bool = False) -> Extremes:
    """From the smallest to the largest, or the other way round."""
    places = numpy.argsort(-x.value if descending else x.value, dim, "stable")
    indices = Array(places, x.tape)
    return Extremes(gather(x, dim, indices), indices)


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


def logsumexp(x: Array, dim: Dims, keepdim: bool = False) -> Array:
    """Log-sum-exp."""
    x = floating(x)
    a = x.value
    axes = _axes(a, dim)
    most = _max(a, axes, keepdims=True)
    most = numpy.where(numpy.isinf(most), a.dtype.type(0), most)
    kept = numpy.log(_sum(numpy.exp(a - most), axes, keepdims=True)) + most
    out = kept if keepdim else numpy.squeeze(kept, axes)[()]
    if not recording(x):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        accumulate(x, numpy.exp(a - kept) * _lengthened(g, a, axes, keepdim))

    return recorded(out, x.tape, back)


# -- norms -----------------------------------------------------------------------------------------


def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Array:
    """Each row to mean 0 and variance 1, then scaled and shifted."""
    x = as_array(tape_of(input, weight, bias), input)
    axes = tuple(range(-len(normalized_shape), 0))
    if x.value.shape[axes[0] :] != tuple(normalized_shape):
        raise UnsupportedError("layer_norm over another shape")
    return _standardised(x, axes, eps, weight, bias)[0]


def batch_norm(
    input: Array,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Array:
    """Each column to mean 0 and variance 1, of the rows or as they run, then scaled and shifted."""
    rows, tape = len(input.value), input.tape
    if input.value.ndim != 2 or weight is None or (training and rows < 2):
        raise UnsupportedError("batch_norm of other than rows of features")
    if not training:
        mean_of_all, variance, factor, shift = (
            as_array(tape, part) for part in (running_mean, running_var, weight, bias)
        )
        scale = multiply(factor, power(add(variance, eps), -0.5))
        return add(multiply(input, scale), subtract(shift, multiply(mean_of_all, scale)))  # type: ignore[no-any-return] # an array
    out, middle, spread = _standardised(input, (0,), eps, weight, bias)
    if running_mean is not None:
        with torch.no_grad():
            running_mean.lerp_(torch.from_numpy(middle[0]), momentum)
            running_var.lerp_(torch.from_numpy(spread[0] * (rows / (rows - 1))), momentum)
    return out


def _standardised(
    x: Array, axes: tuple[int, ...], eps: float, weight: Any, bias: Any
) -> tuple[Array, Value, Value]:
    """Numbers with mean 0 and variance 1 along the axes, scaled and shifted; both before that."""
    tape, a = x.tape, x.value
    kind = a.dtype.type
    w = Array(kind(1), tape) if weight is None else as_array(tape, weight)
    b = Array(kind(0), tape) if bias is None else as_array(tape, bias)
    count = kind(_count(a, axes))
    middle = _sum(a, axes, keepdims=True) / count
    out = a - middle
    spread = _sum(out * out, axes, keepdims=True) / count
    scale = 1 / numpy.sqrt(spread + kind(eps))
    out *= scale
    made = out * w.value
    made += b.value
    if not recording(x, w, b):
        return Array(made, tape), middle, spread

    def back(g: Value) -> None:
        along = g * out
        accumulate(w, along)
        accumulate(b, g)
        if not x.requires_grad:
            return
        along = along * w.value
        below = g * w.value
        shared = _sum(below, axes, keepdims=True) / count
        numpy.multiply(out, _sum(along, axes, keepdims=True) / count, along)
        below -= shared
        below -= along
        below *= scale
        accumulate(x, below)

    return recorded(made, tape, back), middle, spread


def dropout(input: Array, p: float = 0.5, training: bool = True, inplace: bool = False) -> Array:
    """The input: nothing is dropped in evaluation."""
    if training and p > 0:
        raise UnsupportedError("dropout in training")
    return input


# -- losses ----------------------------------------------------------------------------------------


def _reduced(rows: Array, options: Mapping[str, Any], reduction: str) -> Array:
    """The mean or sum of the losses of all numbers."""
    if any(map(_is_given, options.values())):
        raise UnsupportedError("losses with other options")
    if reduction == "none":
        return rows
    if reduction not in ("mean", "sum"):
        raise UnsupportedError(f"reduction {reduction!r}")
    return mean(rows) if reduction == "mean" else total(rows)


def _is_given(option: Any) -> bool:
    return option is not None


def mse_loss(input: Any, target: Any, *, reduction: str = "mean", **options: Any) -> Array:
    """Squared errors; what is commonest in one operation."""
    x, y = operands(input, target)
    if reduction != "mean" or not recording(x, y) or any(map(_is_given, options.values())):
        return _reduced(square(subtract(x, y)), options, reduction)
    away = x.value - y.value
    squares = away * away
    count = squares.dtype.type(squares.size)

    def back(g: Value) -> None:
        gradient = g / count * (away + away)
        accumulate(x, gradient)
        if y.requires_grad:
            accumulate(y, -gradient)

    return recorded(_sum(squares, None) / count, x.tape, back)


def smooth_l1_loss(
    input: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0, **options: Any
) -> Array:
    """Squared errors below beta, absolute ones above; the slope of the latter is 1."""
    return _reduced(_huber(input, target, beta, 1 / beta), options, reduction)


def huber_loss(
    input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, **options: Any
) -> Array:
    """Squared errors below delta, absolute ones above; the slope of the latter is delta."""
    return _reduced(_huber(input, target, delta, 1.0), options, reduction)


def _huber(input: Any, target: Any, edge: float, scale: float) -> Array:
    """scale times half the square of errors within an edge, and straight lines beyond."""
    x, y = operands(input, target)
    kind = x.value.dtype.type
    away = x.value - y.value
    limit = kind(edge)
    # Within the edge both factors are the error; beyond, one is the edge.
    held = away.clip(-limit, limit)
    out = held * kind(-0.5)
    out += away
    out *= held if scale == 1 else held * kind(scale)
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


def cross_entropy(
    input: Any,
    target: Any,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    **options: Any,
) -> Array:
    """-log of the probability of classes, or against the probabilities of all classes."""
    tape = tape_of(input, target)
    x, y = as_array(tape, input), as_array(tape, target)
    if label_smoothing or x.value.ndim != 2:
        raise UnsupportedError("cross_entropy with other options")
    logs: Any = log_softmax(x, 1)
    if y.value.dtype.kind != "f":
        return nll_loss(logs, y, ignore_index=ignore_index, reduction=reduction, **options)
    return _reduced(negative(total(logs * y, 1)), options, reduction)


def nll_loss(
    input: Any,
    target: Any,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    **options: Any,
) -> Array:
    """The negative of what belongs to each row's class."""
    tape = tape_of(input, target)
    x, y = as_array(tape, input), as_array(tape, target)
    if x.value.ndim != 2 or (y.value == ignore_index).any():
        raise UnsupportedError("nll_loss with other options")
    rows = negative(gather(x, 1, unsqueeze(y, 1)).squeeze(1))
    return _reduced(rows, options, reduction)


# -- axes ------------------------------------------------------------------------------------------


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
    count = 1
    for axis in (axes,) if isinstance(axes, int) else axes:
        count *= a.shape[axis]
    return count


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


_amax, _largest = _extremes(_max, numpy.argmax, maximum)
_amin, _smallest = _extremes(numpy.minimum.reduce, numpy.argmin, minimum)

implement(
    all=_truths(numpy.logical_and.reduce),
    amax=_amax,
    amin=_amin,
    any=_truths(numpy.logical_or.reduce),
    argmax=_places(numpy.argmax),
    argmin=_places(numpy.argmin),
    batch_norm=batch_norm,
    cross_entropy=cross_entropy,
    dropout=dropout,
    huber_loss=huber_loss,
    layer_norm=layer_norm,
    log_softmax=log_softmax,
    logsumexp=logsumexp,
    max=_largest,
    mean=mean,
    min=_smallest,
    mse_loss=mse_loss,
    nll_loss=nll_loss,
    smooth_l1_loss=smooth_l1_loss,
    softmax=softmax,
    sort=sort,
    std=_spreads(root=True),
    sum=total,
    var=_spreads(root=False),
)
