"""The larger, the smaller, the one or the other: choices between numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy
from torch import Tensor

from rlplug.nn.arrays.array import Array, UnsupportedError, accumulate, recorded, recording
from rlplug.nn.arrays.dtypes import promoted
from rlplug.nn.arrays.elementwise import NUMBERS, as_array, operands, tape_of, with_number

__all__ = ["clamp", "masked_fill", "maximum", "minimum", "nan_to_num", "where"]

Value: TypeAlias = Any

_TENSORS = (Array, Tensor)


def maximum(x: Any, y: Any) -> Array:
    """The larger one of each pair."""
    return _larger(*operands(x, y), numpy.maximum, operator.lt)


def minimum(x: Any, y: Any) -> Array:
    """The smaller one of each pair."""
    return _larger(*operands(x, y), numpy.minimum, operator.gt)


def _larger(
    x: Array,
    y: Array,
    forward: Callable[[Value, Value], Value],
    loses: Callable[[Value, Value], Value],
) -> Array:
    a, b = x.value, y.value
    out = forward(a, b)
    if not recording(x, y):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        half = g * g.dtype.type(0.5)
        # -1 where the first one loses, 1 where the second does; equal ones share the gradient.
        if half.ndim:
            lead = loses(b, a).view(numpy.int8) - loses(a, b).view(numpy.int8)
        else:
            lead = numpy.int8(loses(b, a)) - numpy.int8(loses(a, b))
        more = half * lead
        if x.requires_grad:
            accumulate(x, half + more)
        if y.requires_grad:
            accumulate(y, half - more)

    return recorded(out, x.tape, back)


def clamp(x: Array, min: Any = None, max: Any = None) -> Array:
    """Held between two numbers, or between two arrays."""
    if (
        type(min) is Array
        or type(max) is Array
        or isinstance(min, Tensor)
        or isinstance(max, Tensor)
    ):
        return _clamp_between(x, min, max)
    if x.value.dtype.kind != "f":
        for bound in (min, max):
            x = x if bound is None else with_number(x, bound)[0]
    a = out = x.value
    kind = a.dtype.type
    if min is not None:
        out = numpy.maximum(out, kind(min))
    if max is not None:
        out = numpy.minimum(out, kind(max))
    if not recording(x):
        return Array(out, x.tape)
    # What equals a bound is not held: it keeps its gradient. NaN has none.
    return recorded(out, x.tape, lambda g: accumulate(x, g * _within(a, out, min, max)))


def _within(a: Value, out: Value, low: Any, high: Any) -> Value:
    if low is not None and high is not None and low > high:
        return (a >= low) & (a <= high)
    return a == out


def _clamp_between(x: Any, low: Any, high: Any) -> Array:
    tape = tape_of(x, low, high)
    x = as_array(tape, x)
    if low is not None:
        x, low = operands(x, low)
    if high is not None:
        x, high = operands(x, high)
        if low is not None:
            x, low = operands(x, low)
    a = out = x.value
    if low is not None:
        out = numpy.maximum(out, low.value)
    if high is not None:
        out = numpy.minimum(out, high.value)
    bounds = [bound for bound in (low, high) if bound is not None]
    if not recording(x, *bounds):
        return Array(out, tape)

    def back(g: Value) -> None:
        none = g.dtype.type(0)
        inside: Value = numpy.bool_(True)
        if low is not None:
            inside = a >= low.value
            held = a < low.value
            if high is not None:
                held = held & (low.value < high.value)
            accumulate(low, numpy.where(held, g, none))
        if high is not None:
            inside = inside & (a <= high.value)
            held = a > high.value
            if low is not None:
                held = held | (high.value < low.value)
            accumulate(high, numpy.where(held, g, none))
        accumulate(x, numpy.where(inside, g, none))

    return recorded(out, tape, back)


def where(condition: Any, x: Any, y: Any) -> Array:
    """From the one where it is true, else from the other."""
    tape = tape_of(condition, x, y)
    if type(x) is not Array and type(y) is not Array:
        x = as_array(tape, x)
    x, y = operands(x, y)
    chosen = as_array(tape, condition).value
    if chosen.dtype.kind != "b":
        raise UnsupportedError("where without truth values")
    out = numpy.where(chosen, x.value, y.value)[()]
    if not recording(x, y):
        return Array(out, tape)

    def back(g: Value) -> None:
        none = g.dtype.type(0)
        if x.requires_grad:
            accumulate(x, numpy.where(chosen, g, none))
        if y.requires_grad:
            accumulate(y, numpy.where(chosen, none, g))

    return recorded(out, tape, back)


def masked_fill(x: Any, mask: Any, value: Any) -> Array:
    """Another value where the mask is true."""
    tape = tape_of(x, mask, value)
    x, mask = as_array(tape, x), as_array(tape, mask)
    filling = as_array(tape, value.item() if isinstance(value, numpy.generic) else value)
    if filling.value.ndim or mask.value.dtype.kind != "b":
        raise UnsupportedError("masked_fill with more than one value")
    kind = x.value.dtype
    if not isinstance(value, NUMBERS) and promoted(x.value, filling.value) != kind:
        raise UnsupportedError("masked_fill with a value of a higher dtype")
    # A number as it is: the lowest of float64 does not go through float32.
    number = kind.type(value) if isinstance(value, NUMBERS) else filling.value.astype(kind)
    filled = mask.value
    out = numpy.where(filled, number, x.value)[()]
    if not recording(x, filling):
        return Array(out, tape)

    def back(g: Value) -> None:
        none = g.dtype.type(0)
        accumulate(x, numpy.where(filled, none, g))
        if filling.requires_grad:
            accumulate(filling, numpy.where(filled, g, none).astype(filling.value.dtype))

    return recorded(out, tape, back)


def nan_to_num(
    x: Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Array:
    """Other numbers for those that are none."""
    a = x.value
    if a.dtype.kind != "f":
        return x
    out = numpy.nan_to_num(a, nan=nan or 0.0, posinf=posinf, neginf=neginf)
    if not recording(x):
        return Array(out, x.tape)
    return recorded(out, x.tape, lambda g: accumulate(x, g * numpy.isfinite(a)))
