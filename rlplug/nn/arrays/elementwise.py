"""Arithmetic, comparisons, functions of single numbers, and choices between them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

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
    default_float,
    implement,
    operands,
    recorded,
    recording,
    tape_of,
    with_number,
)

__all__ = ["floating", "maximum", "minimum", "sigmoid", "tanh_slope"]

VJP: TypeAlias = Callable[[Value, Value, Value], Value]
"""Vector-Jacobian product: from the output's gradient, the input and the output."""
PairVJP: TypeAlias = Callable[[Value, Value, Value, Value], Value]
"""The same for one of two operands."""

# Asked by nearly every operation.
_is_recording = torch.is_grad_enabled


def floating(x: Array) -> Array:
    """Whole numbers as fractional ones of the default dtype."""
    return x if x.value.dtype.kind == "f" else cast(x, default_float())


def unary(forward: Callable[[Value], Value], vjp: VJP, *, whole: bool = False) -> Function:
    """A function of fractional numbers; `whole` leaves whole numbers whole."""

    def function(x: Array) -> Array:
        if x.value.dtype.kind != "f":
            if whole:
                return Array(forward(x.value), x.tape)
            x = cast(x, default_float())
        a = x.value
        out = forward(a)
        tape = x.tape
        if not x.requires_grad or not _is_recording():
            return Array(out, tape)
        made = Array(out, tape, True)
        tape.nodes.append((made, lambda g: accumulate(x, vjp(g, a, out))))
        return made

    return function


def binary(forward: Callable[[Value, Value], Value], left: PairVJP, right: PairVJP) -> Function:
    """A function of two operands."""

    def with_constant(x: Array, y: float) -> Array:
        a = x.value
        if not a.ndim:
            # Beside arrays, Python's numbers have the array's dtype, but not beside single numbers.
            y = a.dtype.type(y)
        out = forward(a, y)
        if not x.requires_grad or not _is_recording():
            return Array(out, x.tape)
        return recorded(out, x.tape, lambda g: accumulate(x, left(g, a, y, out)))

    def function(x: Any, y: Any) -> Array:
        if (type(y) is float or type(y) is int) and x.value.dtype.kind == "f":
            return with_constant(x, y)
        if type(x) is not Array or type(y) is not Array or x.value.dtype is not y.value.dtype:
            x, y = operands(x, y)
        a, b = x.value, y.value
        out = forward(a, b)
        tape = x.tape
        if not (x.requires_grad or y.requires_grad) or not _is_recording():
            return Array(out, tape)

        def back(g: Value) -> None:
            if x.requires_grad:
                accumulate(x, left(g, a, b, out))
            if y.requires_grad:
                accumulate(y, right(g, a, b, out))

        made = Array(out, tape, True)
        tape.nodes.append((made, back))
        return made

    return function


def comparison(forward: Callable[[Value, Value], Value]) -> Function:
    """A function of two operands without gradients."""

    def function(x: Any, y: Any) -> Array:
        if type(y) is float and x.value.dtype.kind == "f":
            return Array(forward(x.value, y), x.tape)
        x, y = operands(x, y)
        return Array(forward(x.value, y.value), x.tape)

    return function


def predicate(forward: Callable[[Value], Value]) -> Function:
    """A function of one operand without gradients."""
    return lambda x: Array(forward(x.value), x.tape)


# -- arithmetic: on single numbers operators take a fourth of the time of NumPy's functions --------

add = binary(operator.add, lambda g, a, b, out: g, lambda g, a, b, out: g)
subtract = binary(operator.sub, lambda g, a, b, out: g, lambda g, a, b, out: -g)
multiply = binary(operator.mul, lambda g, a, b, out: g * b, lambda g, a, b, out: g * a)
_quotient = binary(
    operator.truediv, lambda g, a, b, out: g / b, lambda g, a, b, out: -g * (out / b)
)
square = unary(lambda a: a * a, lambda g, a, out: g * (a + a), whole=True)


def divide(x: Any, y: Any) -> Array:
    """The quotient, fractional also for whole numbers."""
    if not isinstance(y, float | int):
        x, y = operands(x, y)
        y = floating(y)
    quotient: Array = _quotient(floating(x), y)
    return quotient


def power(x: Any, y: Any) -> Array:
    """To a power: torch computes all but squares."""
    powers: Array = square(x) if type(y) is int and y == 2 else _power_in_torch(x, y)
    return powers


def _signs(a: Value) -> Value:
    # torch's sign of NaN is 0.
    signs = numpy.sign(a)
    return numpy.where(signs == signs, signs, a.dtype.type(0))


def tanh_slope(g: Value, out: Value) -> Value:
    """A gradient on its way back through tanh, given what that gave."""
    if not out.ndim:
        return (1 - out * out) * g
    slope = out * out
    numpy.subtract(1, slope, slope)
    slope *= g
    return slope


def sigmoid(a: Value) -> Value:
    """1 / (1 + exp(-a)), by way of tanh: nothing overflows."""
    kind = a.dtype.type
    half = numpy.tanh(a * kind(0.5))
    half += kind(1)
    half *= kind(0.5)
    return half


def relu(x: Array, inplace: bool = False) -> Array:
    """The positive part."""
    if inplace:
        raise UnsupportedError("a layer that works in place")
    a = x.value
    # Compared with an array of zeros, not with the number, in a fourth of the time.
    out = numpy.maximum(a, numpy.zeros_like(a))
    if not x.requires_grad or not _is_recording():
        return Array(out, x.tape)
    # A product, for numpy.where takes up to ten times as long.
    return recorded(out, x.tape, lambda g: accumulate(x, g * (out > 0)))


# -- choices ---------------------------------------------------------------------------------------


def _larger(forward: Function, loses: Function) -> Function:
    """The larger or the smaller one of each pair."""

    def function(x: Any, y: Any) -> Array:
        x, y = operands(x, y)
        a, b = x.value, y.value
        out = forward(a, b)
        if not recording(x, y):
            return Array(out, x.tape)

        def back(g: Value) -> None:
            half = g * g.dtype.type(0.5)
            # -1 where the first one loses, 1 where the second does; equal ones share the gradient.
            more = half * numpy.subtract(loses(b, a), loses(a, b), dtype=numpy.int8)
            if x.requires_grad:
                accumulate(x, half + more)
            if y.requires_grad:
                accumulate(y, half - more)

        return recorded(out, x.tape, back)

    return function


maximum = _larger(numpy.maximum, operator.lt)
minimum = _larger(numpy.minimum, operator.gt)


def clamp(x: Any, min: Any = None, max: Any = None) -> Array:
    """Held between two numbers, or between two arrays."""
    if isinstance(min, Array | Tensor) or isinstance(max, Array | Tensor):
        held: Array = _clamp_in_torch(x, min, max)
        return held
    if x.value.dtype.kind != "f":
        for bound in (min, max):
            x = x if bound is None else with_number(x, bound)[0]
    a = x.value
    kind = a.dtype.type
    out = a.clip(None if min is None else kind(min), None if max is None else kind(max))
    if not x.requires_grad or not _is_recording():
        return Array(out, x.tape)
    # What equals a bound is not held: it keeps its gradient. NaN has none.
    return recorded(out, x.tape, lambda g: accumulate(x, g * (a == out)))


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
        # Products, for numpy.where takes up to ten times as long.
        if x.requires_grad:
            accumulate(x, g * chosen)
        if y.requires_grad:
            accumulate(y, g * ~chosen)

    return recorded(out, tape, back)


def masked_fill(x: Any, mask: Any, value: Any) -> Array:
    """Another value where the mask is true."""
    x = as_array(tape_of(x, mask), x)
    filled = where(mask, value.item() if isinstance(value, Tensor) else value, x)
    if filled.value.dtype != x.value.dtype:
        raise UnsupportedError("masked_fill with a value of a higher dtype")
    return filled


def _to(dtype: torch.dtype) -> Function:
    """A method that casts."""
    return lambda x: cast(x, NUMPY_DTYPES[dtype])


def _refused(x: Array, *_: Any, **__: Any) -> Any:
    raise UnsupportedError("a change in place")


def _reflected(function: Function) -> Function:
    return lambda x, y: function(y, x)


# -- their names -----------------------------------------------------------------------------------

borrow(
    "atan2 atanh clamp cos elu erf expm1 floor_divide gelu leaky_relu log10 log2 logaddexp",
    "logical_and logical_or logsigmoid nan_to_num pow reciprocal remainder round rsqrt sign silu",
    "sin softplus",
)
_clamp_in_torch = Array.functions[torch.clamp]
_power_in_torch = Array.functions[torch.pow]

_OPERATORS: dict[str, tuple[Function, tuple[str, ...]]] = {
    "add": (add, ("add",)),
    "sub": (subtract, ("sub", "subtract")),
    "mul": (multiply, ("mul", "multiply")),
    "truediv": (divide, ("div", "divide", "true_divide")),
    "floordiv": (Array.functions[torch.floor_divide], ()),
    "mod": (Array.functions[torch.remainder], ()),
    "pow": (power, ("pow",)),
    "and": (comparison(numpy.bitwise_and), ("bitwise_and",)),
    "or": (comparison(numpy.bitwise_or), ("bitwise_or",)),
    "xor": (comparison(numpy.bitwise_xor), ("bitwise_xor",)),
}
"""Operators with their reflected forms, and torch's names for the same."""

for _name, (_function, _names) in _OPERATORS.items():
    implement(
        **{
            f"__{_name}__": _function,
            f"__r{_name}__": _reflected(_function),
            f"__i{_name}__": _refused,
            **dict.fromkeys(_names, _function),
        }
    )
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _function = comparison(getattr(operator, _name))
    implement(**{f"__{_name}__": _function, _name: _function})
for _name, _function, _names in (
    ("neg", unary(operator.neg, lambda g, a, out: -g, whole=True), ("__neg__",)),
    ("abs", unary(abs, lambda g, a, out: g * _signs(a), whole=True), ("__abs__",)),
    ("bitwise_not", predicate(numpy.invert), ("__invert__",)),
    ("clamp", clamp, ("clip",)),
):
    implement(**dict.fromkeys((_name, *_names), _function))
implement(
    rsub=_reflected(subtract),
    exp=unary(numpy.exp, lambda g, a, out: g * out),
    floor=unary(numpy.floor, lambda g, a, out: numpy.zeros_like(g), whole=True),
    log=unary(numpy.log, lambda g, a, out: g / a),
    log1p=unary(numpy.log1p, lambda g, a, out: g / (a + 1)),
    sqrt=unary(numpy.sqrt, lambda g, a, out: g / (2 * out)),
    square=square,
    sigmoid=unary(sigmoid, lambda g, a, out: g * (1 - out) * out),
    tanh=unary(numpy.tanh, lambda g, a, out: tanh_slope(g, out)),
    relu=relu,
    isfinite=predicate(numpy.isfinite),
    isnan=predicate(numpy.isnan),
    logical_not=predicate(numpy.logical_not),
    maximum=maximum,
    minimum=minimum,
    clamp_max=lambda x, max: clamp(x, None, max),
    clamp_min=lambda x, min: clamp(x, min),
    where=where,
    masked_fill=masked_fill,
    bool=_to(torch.bool),
    double=_to(torch.float64),
    float=_to(torch.float32),
    int=_to(torch.int32),
    long=_to(torch.int64),
)
# A method has its condition in another place.
Array.where = lambda x, condition, other: where(condition, x, other)  # type: ignore[attr-defined]
Array.functions[Tensor.where] = Array.where  # type: ignore[attr-defined] # a method
