"""An array that answers to torch's interface, and the dtypes that it can have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, TypeAlias

import numpy
import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "NUMBERS",
    "NUMPY_DTYPES",
    "TORCH_DTYPES",
    "Array",
    "Function",
    "Recorder",
    "UnsupportedError",
    "Value",
    "accumulate",
    "as_array",
    "as_tensor",
    "borrow",
    "cast",
    "default_float",
    "implement",
    "operands",
    "promoted",
    "recorded",
    "recording",
    "tape_of",
    "unwrap",
    "with_number",
]

Value: TypeAlias = Any
"""A NumPy array, or a NumPy scalar."""

Recorder: TypeAlias = Any
"""The tape that an array is on: `rlplug.nn.arrays.Tape`."""

Function: TypeAlias = Callable[..., Any]

Back: TypeAlias = Callable[[Value], object]
"""Passes the gradient of what an operation gave on to what it was given."""

NUMBERS = (float, int, numpy.generic)

NUMPY_DTYPES: dict[torch.dtype, numpy.dtype[Any]] = {
    getattr(torch, name): numpy.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
}

TORCH_DTYPES: dict[str, torch.dtype] = {
    # NumPy has two letters for its integers of 64 bits.
    "q": torch.int64,
    **{known.char: dtype for dtype, known in NUMPY_DTYPES.items()},
}
"""By NumPy's letters: comparing its formats takes several times as long."""


class UnsupportedError(AttributeError):
    """What arrays cannot do, so that the module runs on torch; an answer to `hasattr`, too."""

    @property
    def reason(self) -> str:
        """Why the module runs on torch."""
        return f"not on arrays: {self}"


class Array:
    """NumPy numbers behind the part of torch's interface that losses and small networks use.

    It has no `__array__`, no `__len__` and no iterator, so that nothing turns it into a plain
    tensor unnoticed, and nothing changes it in place. `implement` gives it its other methods.
    """

    __slots__ = ("grad", "grad_view", "requires_grad", "tape", "value")

    __array_ufunc__ = None
    __iter__ = None
    __hash__ = object.__hash__

    functions: ClassVar[dict[Any, Function]] = {}
    """What stands in for which function of torch."""

    def __init__(self, value: Value, tape: Recorder, requires_grad: bool = False) -> None:
        self.value = value
        self.tape = tape
        self.requires_grad = requires_grad
        self.grad: Value = None
        """The gradient, while one is on its way back through the tape."""
        self.grad_view: Value = None
        """Of a trained parameter: where its gradient is written."""

    @classmethod
    def __torch_function__(
        cls,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What a function of torch does when one of its arguments is an array."""
        function = cls.functions.get(func)
        if function is None:
            raise UnsupportedError(f"arrays have no {getattr(func, '__name__', func)}")
        try:
            return function(*args, **kwargs) if kwargs else function(*args)
        except Exception as error:
            # Also what torch refuses as well: it says so in its own words then.
            raise UnsupportedError(f"{getattr(func, '__name__', func)}: {error}") from error

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(f"arrays have no {name}")

    def __repr__(self) -> str:
        return f"Array({self.value!r}{', requires_grad=True' if self.requires_grad else ''})"


# -- functions and methods -------------------------------------------------------------------------


def implement(**functions: Function) -> None:
    """Give arrays methods, which also stand in for torch's functions of the same names."""
    for name, function in functions.items():
        setattr(Array, name, function)
        for home in (Tensor, torch, functional):
            if hasattr(home, name):
                Array.functions[getattr(home, name)] = function


def borrow(*lines: str) -> None:
    """Give arrays what is too rare to be written in NumPy, named in lines: torch computes it."""
    for name in " ".join(lines).split():
        for home in (functional, torch, Tensor):
            original = getattr(home, name, None)
            if original is not None:
                # The last of them is the method.
                function = Array.functions[original] = _in_torch(original)
                setattr(Array, name, function)


def _in_torch(original: Function) -> Function:
    """A function of torch as one operation on arrays, whose gradients autograd finds."""

    def function(*args: Any, **options: Any) -> Any:
        tape = tape_of(*args, *options.values())
        lent: list[Tensor] = []
        ends: list[tuple[Array, Tensor]] = []

        def lend(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(map(lend, value))
            if isinstance(value, Tensor) and value.requires_grad:
                value = tape.leaf(value)
            if type(value) is not Array:
                return value
            # A copy, which the function may change: that is seen then.
            tensor = torch.from_numpy(numpy.array(value.value))
            lent.append(tensor)
            if recording(value):
                ends.append((value, tensor.requires_grad_()))
            return tensor

        def take_back(out: Any) -> Any:
            if isinstance(out, Tensor):
                return tape.from_torch(out, ends)
            return type(out)([*map(take_back, out)])

        out = original(*map(lend, args), **{name: lend(part) for name, part in options.items()})
        if any(tensor._version for tensor in lent):
            raise UnsupportedError("a change in place")
        return take_back(out)

    return function


# -- gradients -------------------------------------------------------------------------------------


def recording(*arrays: Array) -> bool:
    """Whether what is made of these has to be on the tape."""
    for array in arrays:
        if array.requires_grad:
            return _grad_enabled()
    return False


def recorded(value: Value, tape: Recorder, back: Back) -> Array:
    """The result of an operation, with its backward function."""
    out = Array(value, tape, True)
    tape.nodes.append((out, back))
    return out


def accumulate(array: Array, gradient: Value) -> None:
    """Add to the gradient of an array, summed over what was broadcast."""
    if not array.requires_grad:
        return
    shape = array.value.shape
    if gradient.shape != shape:
        gradient = _summed_to(gradient, shape)
    known = array.grad
    # Not in place: the gradient may belong to others, too.
    array.grad = gradient if known is None else known + gradient


def _summed_to(gradient: Value, shape: tuple[int, ...]) -> Value:
    extra = gradient.ndim - len(shape)
    if extra > 0:
        gradient = numpy.add.reduce(gradient, tuple(range(extra)))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and gradient.shape[i] != 1)
    if axes == (len(shape) - 1,) and gradient.flags.c_contiguous:
        # A product with ones is a sum along short rows, in a fifth of the time.
        ones = numpy.ones(gradient.shape[-1], gradient.dtype)
        gradient = gradient.dot(ones)[..., None]
    elif axes:
        gradient = numpy.add.reduce(gradient, axes, keepdims=True)
    return gradient if gradient.shape == shape else numpy.broadcast_to(gradient, shape)


# -- operands --------------------------------------------------------------------------------------


def tape_of(*values: Any) -> Recorder:
    """The tape of the arrays among some values."""
    for value in values:
        if type(value) is Array:
            return value.tape
    raise UnsupportedError("no array among the arguments")


def as_array(tape: Recorder, value: Any) -> Array:
    """An array, tensor or number as an array."""
    if type(value) is Array:
        return value
    if isinstance(value, Tensor):
        array: Array = tape.leaf(value)
        return array
    if isinstance(value, bool):
        return Array(numpy.bool_(value), tape)
    if isinstance(value, int):
        return Array(numpy.int64(value), tape)
    if isinstance(value, float):
        return Array(default_float().type(value), tape)
    raise UnsupportedError(f"a {type(value).__name__} among arrays")


def operands(x: Any, y: Any) -> tuple[Array, Array]:
    """Two operands as arrays of one dtype: that of torch's type promotion."""
    if type(x) is Array:
        kind = type(y)
        if kind is Array:
            first, second = x.value.dtype, y.value.dtype
            # NumPy takes truth values beside fractional numbers as 0 and 1.
            if first is second or (first.kind == "f" and second.kind == "b" and x.value.ndim):
                return x, y
        elif kind is float or kind is int or isinstance(y, NUMBERS):
            return with_number(x, y)
        else:
            y = as_array(x.tape, y)
    elif type(y) is Array and isinstance(x, NUMBERS):
        second, first = with_number(y, x)
        return first, second
    else:
        tape = tape_of(x, y)
        x, y = as_array(tape, x), as_array(tape, y)
    dtype = promoted(x.value, y.value)
    return cast(x, dtype), cast(y, dtype)


def with_number(x: Array, number: Any) -> tuple[Array, Array]:
    """An array and a Python number, which never widens it."""
    dtype = x.value.dtype
    if dtype.kind != "f":
        if isinstance(number, float | numpy.floating):
            x = cast(x, default_float())
        elif dtype.kind == "b" and not isinstance(number, bool | numpy.bool_):
            x = cast(x, NUMPY_DTYPES[torch.int64])
        dtype = x.value.dtype
    return x, Array(dtype.type(number), x.tape)


def cast(x: Array, dtype: numpy.dtype[Any]) -> Array:
    """The same numbers in another dtype."""
    a = x.value
    if a.dtype == dtype:
        return x
    out = a.astype(dtype)
    if dtype.kind != "f" or not recording(x):
        return Array(out, x.tape)
    return recorded(out, x.tape, lambda g: accumulate(x, g.astype(a.dtype)))


def default_float() -> numpy.dtype[Any]:
    """What whole numbers become where fractions are needed."""
    return NUMPY_DTYPES[torch.get_default_dtype()]


def promoted(a: Value, b: Value) -> numpy.dtype[Any]:
    """The dtype of what two values make together in torch.

    A value without dimensions counts only where it is of a higher kind.
    """
    if bool(a.ndim) == bool(b.ndim):
        return _together(a.dtype.char, b.dtype.char)
    row, number = (a, b) if a.ndim else (b, a)
    higher = _KINDS[number.dtype.kind] > _KINDS[row.dtype.kind]
    dtype: numpy.dtype[Any] = (number if higher else row).dtype
    return dtype


@cache
def _together(a: str, b: str) -> numpy.dtype[Any]:
    return NUMPY_DTYPES[torch.promote_types(TORCH_DTYPES[a], TORCH_DTYPES[b])]


# -- back to torch ---------------------------------------------------------------------------------


def as_tensor(number: Value) -> Tensor:
    """A tensor without a graph in the same memory, or of a copy where torch cannot show that."""
    if type(number) is not numpy.ndarray:
        number = numpy.array(number)
    elif not number.flags.writeable or any(stride < 0 for stride in number.strides):
        number = number.copy()
    return torch.from_numpy(number)


def unwrap(value: Any) -> Any:
    """Arrays, maybe nested, as tensors without a graph in the same memory; the rest as it is."""
    if type(value) is Array:
        return as_tensor(value.value)
    if isinstance(value, Mapping):
        return {name: unwrap(part) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(unwrap, value))
    if isinstance(value, list | tuple):
        return type(value)(map(unwrap, value))
    return value


# Asked by nearly every operation.
_grad_enabled = torch.is_grad_enabled

_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2}
