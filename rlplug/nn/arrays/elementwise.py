"""Arithmetic, comparisons, functions of single numbers, and choices between them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from rlplug.nn.arrays.array import (
    NUMBERS,
    NUMPY_DTYPES,
    Array,
    Function,
    UnsupportedError,
    Value,
    accumulate,
    as_array,
    cast,
    default_float,
    implement,
    operands,
    recorded,
    recording,
    tape_of,
    with_number,
)

__all__ = [
    "absolute",
    "add",
    "binary",
    "comparison",
    "floating",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "power",
    "softplus",
    "square",
    "subtract",
    "tanh_slope",
    "unary",
]

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
remainder = binary(
    numpy.mod, lambda g, a, b, out: g, lambda g, a, b, out: -g * numpy.floor_divide(a, b)
)
negative = unary(operator.neg, lambda g, a, out: -g, whole=True)
absolute = unary(abs, lambda g, a, out: g * _signs(a), whole=True)
square = unary(lambda a: a * a, lambda g, a, out: g * (a + a), whole=True)


def divide(x: Any, y: Any) -> Array:
    """The quotient, fractional also for whole numbers."""
    if not isinstance(y, float | int):
        x, y = operands(x, y)
        y = floating(y)
    quotient: Array = _quotient(floating(x), y)
    return quotient


def _signs(a: Value) -> Value:
    # torch's sign of NaN is 0.
    signs = numpy.sign(a)
    return numpy.where(signs == signs, signs, a.dtype.type(0))


def power(x: Any, y: Any) -> Array:
    """To a power; powers of 2 and of other numbers are cheaper than those of arrays."""
    if type(y) is int and y == 2 and type(x) is Array:
        squares: Array = square(x)
        return squares
    if type(x) is not Array or not isinstance(y, NUMBERS):
        powers: Array = _power(x, y)
        return powers
    if isinstance(y, float) or x.value.dtype.kind == "b":
        x, _ = with_number(x, y)
    exponent = x.value.dtype.type(y)
    a = x.value
    out = numpy.power(a, exponent)
    if not recording(x):
        return Array(out, x.tape)
    if y == 0:
        return recorded(out, x.tape, lambda g: accumulate(x, numpy.zeros_like(g)))
    below = exponent - 1
    return recorded(out, x.tape, lambda g: accumulate(x, g * (exponent * numpy.power(a, below))))


def _power_of_base(g: Value, a: Value, b: Value, out: Value) -> Value:
    return numpy.where(b == 0, g.dtype.type(0), g * (b * numpy.power(a, b - 1)))


def _power_of_exponent(g: Value, a: Value, b: Value, out: Value) -> Value:
    return g * numpy.where((a == 0) & (b >= 0), g.dtype.type(0), out * numpy.log(a))


_power = binary(numpy.power, _power_of_base, _power_of_exponent)

# -- activations -----------------------------------------------------------------------------------


def tanh_slope(g: Value, out: Value) -> Value:
    """A gradient on its way back through tanh, given what that gave."""
    if not out.ndim:
        return (1 - out * out) * g
    slope = out * out
    numpy.subtract(1, slope, slope)
    slope *= g
    return slope


def _sigmoid(a: Value) -> Value:
    # By way of tanh: nothing overflows.
    return numpy.tanh(a * a.dtype.type(0.5)) * a.dtype.type(0.5) + a.dtype.type(0.5)


def _silu_vjp(g: Value, a: Value, out: Value) -> Value:
    share = _sigmoid(a)
    return g * (share * (1 + a * (1 - share)))


_expm1 = unary(numpy.expm1, lambda g, a, out: g * (out + 1))
_silu = unary(lambda a: a * _sigmoid(a), _silu_vjp)


def _out_of_place(activation: Function) -> Function:
    """For layers that may be asked to work in place."""

    def function(x: Array, *options: Any, inplace: bool = False, **named: Any) -> Any:
        if inplace:
            raise UnsupportedError("layers that work in place")
        return activation(x, *options, **named)

    return function


def relu(x: Array, inplace: bool = False) -> Array:
    """The positive part."""
    if inplace:
        raise UnsupportedError("layers that work in place")
    a = x.value
    # Compared with an array of zeros, not with the number, in a fourth of the time.
    out = numpy.maximum(a, x.tape.zeros(a))
    if not x.requires_grad or not _is_recording():
        return Array(out, x.tape)
    # A product, for numpy.where takes up to ten times as long.
    return recorded(out, x.tape, lambda g: accumulate(x, g * (out > 0)))


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
    low: Any = _expm1(clamp(x, None, 0.0))
    return where(Array(x.value > 0, x.tape), x, multiply(low, alpha))


def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """The number if it is positive, else a small part of it."""
    return where(Array(x.value > 0, x.tape), x, multiply(x, negative_slope))


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

    return function


maximum = _larger(numpy.maximum, operator.lt)
minimum = _larger(numpy.minimum, operator.gt)


def clamp(x: Any, min: Any = None, max: Any = None) -> Array:
    """Held between two numbers, or between two arrays."""
    if isinstance(min, Array | Tensor) or isinstance(max, Array | Tensor):
        x = x if min is None else where(x < min, min, x)
        held: Array = x if max is None else where(x > max, max, x)
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


def _truth(x: Any) -> Any:
    return x.to(torch.bool)


def _to_truths(forward: Function) -> Function:
    """A function of two operands, each of which is true where it is not 0."""
    return lambda x, y: forward(_truth(x), _truth(y))


def _refused(x: Array, *_: Any, **__: Any) -> Any:
    raise UnsupportedError("a change in place")


def _reflected(function: Function) -> Function:
    return lambda x, y: function(y, x)


def _no_slope(g: Value, a: Value, out: Value) -> Value:
    return numpy.zeros_like(g)


_and = comparison(numpy.bitwise_and)
_or = comparison(numpy.bitwise_or)
_not = predicate(numpy.invert)

_OPERATORS: dict[str, tuple[Function, tuple[str, ...]]] = {
    "add": (add, ("add",)),
    "sub": (subtract, ("sub", "subtract")),
    "mul": (multiply, ("mul", "multiply")),
    "truediv": (divide, ("div", "divide", "true_divide")),
    "floordiv": (comparison(numpy.floor_divide), ("floor_divide",)),
    "mod": (remainder, ("remainder",)),
    "pow": (power, ("pow",)),
    "and": (_and, ("bitwise_and",)),
    "or": (_or, ("bitwise_or",)),
    "xor": (comparison(numpy.bitwise_xor), ("bitwise_xor",)),
}
"""Operators with their reflected forms, and torch's names for the same."""

_COMPARISONS: dict[str, Function] = {
    "eq": comparison(numpy.equal),
    "ne": comparison(numpy.not_equal),
    "lt": comparison(numpy.less),
    "le": comparison(numpy.less_equal),
    "gt": comparison(numpy.greater),
    "ge": comparison(numpy.greater_equal),
}

for _name, (_function, _names) in _OPERATORS.items():
    implement(
        **{
            f"__{_name}__": _function,
            f"__r{_name}__": _reflected(_function),
            f"__i{_name}__": _refused,
            **dict.fromkeys(_names, _function),
        }
    )
for _name, _function in _COMPARISONS.items():
    implement(**{f"__{_name}__": _function, _name: _function})
implement(
    rsub=_reflected(subtract),
    __neg__=negative,
    neg=negative,
    __abs__=absolute,
    abs=absolute,
    __invert__=_not,
    bitwise_not=_not,
    atanh=unary(numpy.arctanh, lambda g, a, out: g / (1 - a * a)),
    cos=unary(numpy.cos, lambda g, a, out: g * -numpy.sin(a)),
    exp=unary(numpy.exp, lambda g, a, out: g * out),
    expm1=_expm1,
    floor=unary(numpy.floor, _no_slope, whole=True),
    log=unary(numpy.log, lambda g, a, out: g / a),
    log1p=unary(numpy.log1p, lambda g, a, out: g / (a + 1)),
    reciprocal=unary(lambda a: 1 / a, lambda g, a, out: -g * out * out),
    round=unary(numpy.rint, _no_slope, whole=True),
    rsqrt=unary(lambda a: 1 / numpy.sqrt(a), lambda g, a, out: g * out**3 * a.dtype.type(-0.5)),
    sign=unary(numpy.sign, _no_slope, whole=True),
    sin=unary(numpy.sin, lambda g, a, out: g * numpy.cos(a)),
    sqrt=unary(numpy.sqrt, lambda g, a, out: g / (2 * out)),
    square=square,
    sigmoid=unary(_sigmoid, lambda g, a, out: g * (1 - out) * out),
    tanh=unary(numpy.tanh, lambda g, a, out: tanh_slope(g, out)),
    relu=relu,
    elu=_out_of_place(elu),
    leaky_relu=_out_of_place(leaky_relu),
    silu=_out_of_place(_silu),
    softplus=softplus,
    logsigmoid=lambda x: negative(softplus(negative(x))),
    isfinite=predicate(numpy.isfinite),
    isnan=predicate(numpy.isnan),
    logical_and=_to_truths(_and),
    logical_or=_to_truths(_or),
    logical_not=predicate(numpy.logical_not),
    maximum=maximum,
    minimum=minimum,
    clamp=clamp,
    clip=clamp,
    clamp_max=lambda x, max: clamp(x, None, max),
    clamp_min=lambda x, min: clamp(x, min),
    where=where,
    masked_fill=masked_fill,
    bool=lambda x: cast(x, NUMPY_DTYPES[torch.bool]),
    double=lambda x: cast(x, NUMPY_DTYPES[torch.float64]),
    float=lambda x: cast(x, NUMPY_DTYPES[torch.float32]),
    int=lambda x: cast(x, NUMPY_DTYPES[torch.int32]),
    long=lambda x: cast(x, NUMPY_DTYPES[torch.int64]),
)
# A method has its condition in another place.
Array.where = lambda x, condition, other: where(condition, x, other)  # type: ignore[attr-defined]
Array.functions[Tensor.where] = Array.where  # type: ignore[attr-defined] # a method
