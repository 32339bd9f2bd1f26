"""The same numbers in other shapes, side by side or in parts, and parts by position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import EllipsisType, NoneType
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlplug.nn.arrays.array import (
    NUMPY_DTYPES,
    TORCH_DTYPES,
    Array,
    UnsupportedError,
    Value,
    accumulate,
    as_array,
    borrow,
    cast,
    implement,
    promoted,
    recorded,
    recording,
    tape_of,
)

__all__ = ["gather", "reshape"]

borrow(
    "__getitem__ broadcast_to diff flip full_like index_add moveaxis movedim narrow new_zeros",
    "one_hot ones_like pad permute repeat repeat_interleave roll scatter scatter_add select",
    "swapaxes take_along_dim tile tril triu type_as unflatten zeros_like",
)
_getitem_in_torch = Array.functions[Tensor.__getitem__]
_PLAIN = (NoneType, int, slice, EllipsisType)

# -- shapes ----------------------------------------------------------------------------------------


def _mapped(x: Array, out: Value, back: Callable[[Value], Value]) -> Array:
    """The same numbers elsewhere, and how their gradients return."""
    if not x.requires_grad or not torch.is_grad_enabled():
        return Array(out, x.tape)
    return recorded(out, x.tape, lambda g: accumulate(x, back(g)))


def reshape(x: Array, *shape: Any) -> Array:
    """In another shape, row by row."""
    if isinstance(shape[0], torch.dtype):
        raise UnsupportedError("a view as another dtype")
    a = x.value
    out = a.reshape(shape if type(shape[0]) is int else _sizes(shape))
    return _mapped(x, out, lambda g: g.reshape(a.shape))


def flatten(x: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    """Several dimensions as one."""
    shape = x.value.shape or (1,)
    first, last = start_dim % len(shape), end_dim % len(shape)
    if first == last and x.value.ndim:
        return x
    return reshape(x, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


def squeeze(x: Array, dim: int | Sequence[int] | None = None) -> Array:
    """Without dimensions of length 1."""
    a = x.value
    if dim == -1 or (dim == 1 and a.ndim == 2):
        # By far the commonest, and a view is had in a third of the time.
        if not a.ndim or a.shape[-1] != 1:
            return x
        return _mapped(x, a[..., 0], lambda g: g[..., None])
    dims = range(a.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = {_axis(axis, a.ndim) for axis in dims} if a.ndim else set()
    shape = [n for axis, n in enumerate(a.shape) if n != 1 or axis not in gone]
    return _mapped(x, a.reshape(shape), lambda g: g.reshape(a.shape))


def unsqueeze(x: Array, dim: int) -> Array:
    """With one more dimension of length 1."""
    a = x.value
    if dim in (-1, a.ndim):
        return _mapped(x, numpy.asarray(a)[..., None], lambda g: g[..., 0])
    axis = _axis(dim, a.ndim + 1)
    out = a.reshape((*a.shape[:axis], 1, *a.shape[axis:]))
    return _mapped(x, out, lambda g: g.reshape(a.shape))


def transpose(x: Array, dim0: int, dim1: int) -> Array:
    """With two dimensions in each other's place."""
    out = x.value.swapaxes(dim0, dim1)
    return _mapped(x, out, lambda g: g.swapaxes(dim0, dim1))


def turn(x: Array) -> Array:
    """A matrix turned over."""
    if x.value.ndim > 2:
        raise UnsupportedError("T of more than two dimensions")
    return _mapped(x, x.value.T, lambda g: g.T)


def expand(x: Array, *sizes: Any) -> Array:
    """Seen again and again along dimensions of length 1."""
    wanted = _sizes(sizes)
    shape = x.value.shape
    start = len(wanted) - len(shape)
    whole = tuple(shape[i - start] if n == -1 else n for i, n in enumerate(wanted))
    return _mapped(x, numpy.broadcast_to(x.value, whole), lambda g: g)


def cat(arrays: Sequence[Any], dim: int = 0) -> Array:
    """One after the other along a dimension."""
    tape = tape_of(*arrays)
    parts = _of_one_dtype([as_array(tape, part) for part in arrays])
    values = [part.value for part in parts]
    axis = _axis(dim, values[0].ndim)
    if values[0].ndim == 2 and values[0].flags.f_contiguous:
        # One column per row of the batch, as linear layers leave it.
        out = numpy.concatenate([value.T for value in values], 1 - axis).T
    else:
        out = numpy.concatenate(values, axis)
    if not recording(*parts):
        return Array(out, tape)

    def back(g: Value) -> None:
        start = 0
        for part in parts:
            stop = start + part.value.shape[axis]
            accumulate(part, g[_along(axis, slice(start, stop))])
            start = stop

    return recorded(out, tape, back)


def stack(arrays: Sequence[Any], dim: int = 0) -> Array:
    """Side by side along a new dimension."""
    tape = tape_of(*arrays)
    return cat([unsqueeze(as_array(tape, part), dim) for part in arrays], dim)


def split(x: Array, sizes: int | Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    """In parts of these lengths along a dimension."""
    axis = _axis(dim, x.value.ndim)
    whole = x.value.shape[axis]
    if isinstance(sizes, int):
        sizes = [min(sizes, whole - start) for start in range(0, whole, sizes)] or [0]
    if sum(sizes) != whole:
        raise UnsupportedError("parts that are not the whole")
    parts: list[Array] = []
    start = 0
    for size in sizes:
        parts.append(_part(x, _along(axis, slice(start, start + size))))
        start += size
    return tuple(parts)


def unbind(x: Array, dim: int = 0) -> tuple[Array, ...]:
    """The parts at each place along a dimension."""
    axis = _axis(dim, x.value.ndim)
    return tuple(_part(x, _along(axis, place)) for place in range(x.value.shape[axis]))


def chunk(x: Array, chunks: int, dim: int = 0) -> tuple[Array, ...]:
    """In at most so many parts of equal length along a dimension."""
    whole = x.value.shape[dim]
    return split(x, max(-(-whole // chunks), 1), dim)


def _along(axis: int, part: Any) -> tuple[Any, ...]:
    """The key of a part along one axis."""
    return (*(slice(None),) * axis, part)


def _of_one_dtype(parts: list[Array]) -> list[Array]:
    dtype = parts[0].value.dtype
    if all(part.value.dtype is dtype for part in parts):
        return parts
    widest = parts[0].value
    for part in parts[1:]:
        widest = numpy.empty((1,) * widest.ndim, promoted(widest, part.value))
    return [cast(part, widest.dtype) for part in parts]


def _axis(dim: int, ndim: int) -> int:
    """A dimension counted from the front."""
    if not -ndim <= dim < ndim:
        raise IndexError(f"dimension {dim} of {ndim}")
    return dim % ndim


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given one by one, or as one sequence."""
    if len(shape) == 1 and not isinstance(shape[0], int | Array | Tensor):
        shape = tuple(shape[0])
    return tuple(int(n) for n in shape)


# -- parts by position -----------------------------------------------------------------------------


def getitem(x: Any, key: Any) -> Array:
    """x[key]; torch knows masks, and several arrays in one key."""
    if type(key) is Array and key.value.dtype.kind == "i" and key.value.ndim:
        return take_rows(as_array(key.tape, x), key.value)
    places = key if type(key) is tuple else (key,)
    if type(x) is Array and all(isinstance(place, _PLAIN) for place in places):
        return _part(x, places)
    part: Array = _getitem_in_torch(x, key)
    return part


def _part(x: Array, key: tuple[Any, ...]) -> Array:
    """A view by numbers and slices."""
    a = x.value
    out = a[key]
    if out.size == a.size:
        return _mapped(x, out, lambda g: g.reshape(a.shape))

    def back(g: Value) -> Value:
        grad = numpy.zeros_like(a)
        grad[key] = g
        return grad

    return _mapped(x, out, back)


def take_rows(x: Array, rows: NDArray[Any]) -> Array:
    """x[rows] for whole numbers; rows may come again and again."""
    a = x.value
    if not a.ndim:
        raise UnsupportedError("an index of a single number")
    out = a.take(rows, 0)
    if not recording(x):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        flat = rows.reshape(-1)
        grad = numpy.zeros(a.shape, a.dtype)
        width = grad[0].size if len(grad) else 0
        # NumPy adds single numbers faster than whole rows. Layers pass gradients on that lie
        # column by column, and so are they read here.
        places = (flat % len(grad) * width) + numpy.arange(width)[:, None]
        parts = g.reshape(flat.size, width).T
        numpy.add.at(grad.reshape(-1), places.reshape(-1), parts.reshape(-1))
        accumulate(x, grad)

    return recorded(out, x.tape, back)


def gather(x: Any, dim: int, index: Any) -> Array:
    """At each place of the index, what x has there along a dimension."""
    tape = tape_of(x, index)
    x, index = as_array(tape, x), as_array(tape, index)
    a, places = x.value, index.value
    if a.ndim != places.ndim:
        raise UnsupportedError("gather with an index of other dimensions")
    # NumPy counts negative places from the end, and torch does not. The method of arrays is twice
    # as slow as the function that it calls.
    if places.size and numpy.minimum.reduce(places, None) < 0:
        raise UnsupportedError("an index below 0")
    axis = dim % a.ndim if a.ndim else 0
    if a.ndim == 2 and axis == 1 and places.shape == (a.shape[0], 1):
        key: Any = (numpy.arange(len(a)), places[:, 0])
        out = a[key][:, None]
    else:
        key = _grid(axis, places)
        out = a[key]
    if not recording(x):
        return Array(out, tape)
    alone = bool(places.ndim) and places.shape[axis] == 1

    def back(g: Value) -> None:
        # In the order of what a layer gave; NumPy's `zeros_like` takes four times as long.
        grad = numpy.zeros(a.shape, a.dtype, "F")
        if alone:
            grad[key] = g[:, 0] if g.ndim == 2 and key[0].ndim == 1 else g
        else:
            numpy.add.at(grad, key, g)
        accumulate(x, grad)

    return recorded(out, tape, back)


def _grid(axis: int, places: Value) -> tuple[Any, ...]:
    """The key that takes the places along one axis, and each its own place along the others."""
    key: list[Any] = [
        numpy.arange(n).reshape([-1 if i == other else 1 for i in range(places.ndim)])
        for other, n in enumerate(places.shape)
    ]
    if key:
        key[axis] = places
    return tuple(key)


# -- what an array tells of itself, other dtypes, and new arrays like it ---------------------------


def _item(x: Array) -> Any:
    if x.value.size != 1:
        raise UnsupportedError("several numbers as one")
    return x.value.item()


def _index(x: Array) -> int:
    if x.value.dtype.kind not in "iub":
        raise TypeError("only whole numbers can be an index")
    return int(_item(x))


def to_numpy(x: Array, *, force: bool = False) -> Any:
    """The numbers themselves."""
    if x.requires_grad and not force:
        raise UnsupportedError("numpy() of what requires a gradient")
    return numpy.asarray(x.value)


def to(x: Array, *wanted: Any, non_blocking: bool = False, copy: bool = False, **named: Any) -> Any:
    """Another dtype; the device has to be the CPU."""
    if not set(named) <= {"dtype", "device", "other"}:
        raise UnsupportedError("to with other options")
    for option in (*wanted, *named.values()):
        if isinstance(option, torch.dtype):
            if option not in NUMPY_DTYPES:
                raise UnsupportedError(f"numbers of {option}")
            x = cast(x, NUMPY_DTYPES[option])
        elif isinstance(option, Array | Tensor):
            x = to(x, option.dtype, option.device)
        elif not isinstance(option, bool | None) and torch.device(option).type != "cpu":
            raise UnsupportedError(f"to {option}")
    return x


def _same(x: Array, *_: Any, **__: Any) -> Array:
    return x


implement(
    __getitem__=getitem,
    __bool__=lambda x: bool(_item(x)),
    __float__=lambda x: float(_item(x)),
    __int__=lambda x: int(_item(x)),
    __index__=_index,
    cat=cat,
    chunk=chunk,
    clone=lambda x, memory_format=None: _mapped(x, x.value.copy(), lambda g: g),
    concat=cat,
    contiguous=_same,
    cpu=_same,
    detach=lambda x: Array(x.value, x.tape),
    dim=lambda x: x.value.ndim,
    expand=expand,
    expand_as=lambda x, other: expand(as_array(tape_of(x, other), x), *other.shape),
    flatten=flatten,
    gather=gather,
    index_select=lambda x, dim, index: transpose(getitem(transpose(x, 0, dim), index), 0, dim),
    is_floating_point=lambda x: x.value.dtype.kind == "f",
    item=_item,
    numel=lambda x: x.value.size,
    numpy=to_numpy,
    reshape=reshape,
    size=lambda x, dim=None: torch.Size(x.value.shape) if dim is None else x.value.shape[dim],
    split=split,
    squeeze=squeeze,
    stack=stack,
    t=turn,
    to=to,
    tolist=lambda x: x.value.tolist(),
    transpose=transpose,
    unbind=unbind,
    unsqueeze=unsqueeze,
    view=reshape,
)

for _name, _read in {
    "T": turn,
    "mT": lambda x: transpose(x, -2, -1),
    "data": lambda x: Array(x.value, x.tape),
    "device": lambda x: torch.device("cpu"),
    "dtype": lambda x: TORCH_DTYPES[x.value.dtype.char],
    "is_cpu": lambda x: True,
    "ndim": lambda x: x.value.ndim,
    "shape": lambda x: torch.Size(x.value.shape),
}.items():
    setattr(Array, _name, property(_read))
