"""An array that answers to torch's interface, and the graph that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlplug.batch.nested import builtin_dtype
from rlplug.nn.arrays.dtypes import TORCH_DTYPES

__all__ = [
    "Array",
    "Graph",
    "UnsupportedError",
    "accumulate",
    "as_tensor",
    "recorded",
    "recording",
    "unwrap",
]

Value: TypeAlias = Any
"""A NumPy array, or a NumPy scalar."""

Back: TypeAlias = Callable[[Value], object]
"""Passes the gradient of what an operation gave on to what it was given."""


class UnsupportedError(Exception):
    """What arrays cannot do: the module runs on torch."""

    @property
    def reason(self) -> str:
        """Why the module runs on torch."""
        return f"not on arrays: {self}"


class UnsupportedAttributeError(UnsupportedError, AttributeError):
    """A part of torch's interface that arrays do not have."""


class Array:
    """NumPy numbers behind the part of torch's interface that losses and small networks use.

    It has no `__array__`, no `__len__` and no iterator, so that nothing turns it into a plain
    tensor unnoticed, and nothing changes it in place. Its other methods are in `dispatch.py`.
    """

    __slots__ = ("grad", "grad_view", "requires_grad", "tape", "value")

    __array_ufunc__ = None
    __iter__ = None
    __hash__ = object.__hash__

    functions: ClassVar[dict[Any, Callable[..., Any]]] = {}
    """What stands in for which function of torch."""

    def __init__(self, value: Value, tape: Graph, requires_grad: bool = False) -> None:
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
        func: Callable[..., Any],
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
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # Also what torch refuses as well: it says so in its own words then.
            raise UnsupportedError(f"{getattr(func, '__name__', func)}: {error}") from error

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedAttributeError(f"arrays have no {name}")

    def __repr__(self) -> str:
        return f"Array({self.value!r}{', requires_grad=True' if self.requires_grad else ''})"


class Graph:
    """What was computed, operation by operation, and the tensors that it began with."""

    def __init__(self) -> None:
        self.nodes: list[tuple[Array, Back]] = []
        self.leaves: dict[int, Array] = {}
        """The parameters met so far, by their ids."""
        self.stacks: dict[int, Any] = {}
        """Networks that run in one operation, by their ids."""
        self._parts: list[nn.Module] = []
        self._part_tables: list[dict[str, Any]] = []
        self._hook_tables: list[dict[int, Any]] = []
        self._tensors: list[Tensor] = []
        self._addresses: list[tuple[int, bool]] = []
        self._ones: dict[tuple[int, str], NDArray[Any]] = {}
        self._zeros: dict[tuple[Any, ...], NDArray[Any]] = {}
        self._counted: NDArray[Any] = numpy.arange(0)

    def current(self) -> bool:
        """Whether every parameter met so far still lies where it lay, and is trained if it was."""
        seen = [(tensor.data_ptr(), tensor.requires_grad) for tensor in self._tensors]
        return (
            seen == self._addresses
            and [part for table in self._part_tables for part in table.values()] == self._parts
            and not any(self._hook_tables)
        )

    def watch(self, module: nn.Module) -> None:
        """Be current only as long as the module's parts stay, without forward hooks."""
        for part in module.modules():
            self._part_tables.append(part._modules)
            self._parts += [one for one in part._modules.values() if one is not None]
            self._hook_tables += (part._forward_hooks, part._forward_pre_hooks)

    def clear(self) -> None:
        """Forget what was computed."""
        self.nodes.clear()

    def leaf(self, tensor: Tensor) -> Array:
        """A parameter, buffer or other tensor without a graph, in the same memory."""
        known = self.leaves.get(id(tensor))
        if known is not None:
            return known
        # Asking torch for a Parameter is slow.
        if type(tensor) is not Tensor and isinstance(tensor, nn.Parameter):
            return self.add_leaf(tensor)
        return Array(_numbers(tensor), self)

    def add_leaf(self, tensor: Tensor) -> Array:
        """A parameter, which `current` watches from now on."""
        found = self.leaves[id(tensor)] = Array(_numbers(tensor.detach()), self)
        self._tensors.append(tensor)
        self._addresses.append((tensor.data_ptr(), tensor.requires_grad))
        return found

    def array(self, column: Any) -> Any:
        """Arrays or tensors without a graph, maybe nested, as constants."""
        # Nearly every column is one tensor or array, and asking for a Mapping is slow.
        if isinstance(column, Tensor):
            return self.leaf(column)
        if isinstance(column, numpy.ndarray):
            return Array(_checked(column), self)
        if isinstance(column, Mapping):
            return {name: self.array(part) for name, part in column.items()}
        if isinstance(column, tuple):
            return tuple(self.array(part) for part in column)
        return column

    def ones(self, rows: int, dtype: numpy.dtype[Any]) -> NDArray[Any]:
        """So many ones: a product with them is a sum, in a third of the time."""
        key = rows, dtype.char
        found = self._ones.get(key)
        if found is None:
            if len(self._ones) >= _KEPT:
                self._ones.clear()
            found = self._ones[key] = numpy.ones(rows, dtype)
        return found

    def zeros(self, like: Value) -> Value:
        """Zeros that nobody writes to, in the shape and order of a value."""
        if not like.ndim:
            return like.dtype.type(0)
        if like.size > _KEPT_SIZE:
            return numpy.zeros_like(like)
        key = like.shape, like.strides, like.dtype.char
        found = self._zeros.get(key)
        if found is None:
            if len(self._zeros) >= _KEPT:
                self._zeros.clear()
            found = self._zeros[key] = numpy.zeros_like(like)
        return found

    def counted(self, rows: int) -> NDArray[Any]:
        """0, 1, 2 … so many."""
        if len(self._counted) < rows:
            self._counted = numpy.arange(rows)
        return self._counted[:rows]


def recording(*arrays: Array) -> bool:
    """Whether what is made of these has to be in the graph."""
    for array in arrays:
        if array.requires_grad:
            return _grad_enabled()
    return False


def recorded(value: Value, graph: Graph, back: Back) -> Array:
    """The result of an operation, with its backward function."""
    out = Array(value, graph, True)
    graph.nodes.append((out, back))
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


def as_tensor(number: Value) -> Tensor:
    """A tensor without a graph in the same memory, or of a copy where torch cannot show that."""
    if type(number) is not numpy.ndarray:
        number = numpy.array(number)
    elif not number.flags.writeable or _runs_backwards(number):
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


def _summed_to(gradient: Value, shape: tuple[int, ...]) -> Value:
    extra = gradient.ndim - len(shape)
    if extra > 0:
        gradient = numpy.add.reduce(gradient, tuple(range(extra)))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and gradient.shape[i] != 1)
    if axes:
        gradient = numpy.add.reduce(gradient, axes, keepdims=True)
    return gradient if gradient.shape == shape else numpy.broadcast_to(gradient, shape)


def _numbers(tensor: Tensor) -> NDArray[Any]:
    try:
        return _checked(tensor.numpy())
    except (RuntimeError, TypeError) as error:
        if tensor.requires_grad:
            raise UnsupportedError("a tensor with a graph of its own among arrays") from error
        # On another device, or of a format that NumPy lacks.
        raise UnsupportedError(f"a tensor that NumPy cannot show: {error}") from error


def _checked(value: NDArray[Any]) -> NDArray[Any]:
    if value.dtype.char not in TORCH_DTYPES:
        raise UnsupportedError(f"numbers of dtype {value.dtype}")
    # Functions compare formats by identity, the fastest way.
    known = builtin_dtype(value.dtype)
    return value if value.dtype is known else value.view(known)


def _runs_backwards(value: NDArray[Any]) -> bool:
    return any(stride < 0 for stride in value.strides)


# Asked by nearly every operation.
_grad_enabled = torch.is_grad_enabled

_KEPT = 16
"""Arrays of ones and of zeros that are kept."""

_KEPT_SIZE = 65_536
"""Zeros in one of them."""
