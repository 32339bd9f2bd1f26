"""Parts of arrays by position: indexing, gathering, embeddings."""

from __future__ import annotations

from types import EllipsisType
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray
from torch import Tensor

from rlplug.nn.arrays.array import Array, UnsupportedError, accumulate, recorded, recording
from rlplug.nn.arrays.elementwise import as_array, tape_of
from rlplug.nn.arrays.shapes import mapped

__all__ = [
    "embedding",
    "gather",
    "getitem",
    "index_select",
    "one_hot",
    "refuse_negative",
    "scatter_add",
    "take_along_dim",
]

Value: TypeAlias = Any


def getitem(x: Any, key: Any) -> Array:
    """x[key]."""
    tape = tape_of(x, *(key if isinstance(key, tuple) else (key,)))
    x = as_array(tape, x)
    a = x.value
    if type(key) is Array and key.value.dtype.kind in "iu" and key.value.ndim:
        if key.value.dtype.kind == "u":
            raise UnsupportedError("bytes as an index, which torch takes for a mask")
        return _rows(x, key.value)
    parts = tuple(_position(part) for part in (key if isinstance(key, tuple) else (key,)))
    kinds = [isinstance(part, int) for part in parts if isinstance(part, int | numpy.ndarray)]
    if any(kinds) and not all(kinds):
        raise UnsupportedError("numbers and arrays in one index, which NumPy arranges otherwise")
    try:
        out = a[parts]
    except IndexError as error:
        raise UnsupportedError(str(error)) from error
    if not recording(x):
        return Array(out, tape)
    plain = all(part is None or isinstance(part, int | slice | EllipsisType) for part in parts)

    def back(g: Value) -> None:
        if plain and out.size == a.size and out.dtype is a.dtype and _is_whole(parts):
            accumulate(x, g.reshape(a.shape))
            return
        grad = numpy.zeros_like(a)
        if plain:
            grad[parts] = g
        else:
            numpy.add.at(grad, parts, g)
        accumulate(x, grad)

    return recorded(out, tape, back)


def _is_whole(parts: tuple[Any, ...]) -> bool:
    """Whether there is nothing but new dimensions and whole ones."""
    whole = slice(None)
    return all(part is None or part is Ellipsis or part == whole for part in parts)


def _position(part: Any) -> Any:
    if part is None or isinstance(part, int | EllipsisType):
        return part
    if isinstance(part, slice):
        if part.step is not None and part.step < 0:
            raise UnsupportedError("a step below 0")
        return part
    if type(part) is Array:
        return part.value
    if isinstance(part, Tensor):
        return part.numpy()
    if isinstance(part, list | numpy.ndarray):
        return numpy.asarray(part)
    raise UnsupportedError(f"a {type(part).__name__} as an index")


def _rows(x: Array, rows: NDArray[Any]) -> Array:
    """x[rows] for whole numbers; rows may come again and again."""
    a = x.value
    if not a.ndim:
        raise UnsupportedError("an index of a single number")
    out = a.take(rows, 0)
    if not recording(x):
        return Array(out, x.tape)

    def back(g: Value) -> None:
        if not x.requires_grad:
            return
        if x.grad_view is not None and x.grad is None:
            x.grad_view.fill(0)
            grad = x.grad_view
        else:
            grad = numpy.zeros(a.shape, a.dtype)
        add_rows(grad, rows, g)
        if grad is x.grad_view:
            x.grad = grad
        else:
            accumulate(x, grad)

    return recorded(out, x.tape, back)


def add_rows(to: NDArray[Any], rows: NDArray[Any], more: Value) -> None:
    """to[rows] += more, also where a row comes several times; `to` is contiguous."""
    flat = rows.reshape(-1)
    width = to[0].size if len(to) else 0
    # NumPy adds single numbers faster than whole rows. Layers pass gradients on that lie column by
    # column, and so are they read here.
    places = (flat % len(to) * width) + numpy.arange(width)[:, None]
    parts = more.reshape(flat.size, width).T
    numpy.add.at(to.reshape(-1), places.reshape(-1), parts.reshape(-1))


def index_select(x: Any, dim: int, index: Any) -> Array:
    """Places along a dimension."""
    tape = tape_of(x, index)
    x, index = as_array(tape, x), as_array(tape, index)
    places = index.value.reshape(-1)
    refuse_negative(places)
    if dim in (0, -x.value.ndim):
        return _rows(x, places)
    a = x.value
    axis = dim % a.ndim

    def back(g: Value) -> Value:
        moved = numpy.zeros((a.shape[axis], *a.shape[:axis], *a.shape[axis + 1 :]), a.dtype)
        add_rows(moved, places, numpy.moveaxis(g, axis, 0))
        return numpy.moveaxis(moved, 0, axis)

    return mapped(x, a.take(places, axis), back)


def gather(x: Any, dim: int, index: Any) -> Array:
    """At each place of the index, what x has there along a dimension."""
    tape = tape_of(x, index)
    x, index = as_array(tape, x), as_array(tape, index)
    a, places = x.value, index.value
    if a.ndim != places.ndim:
        raise UnsupportedError("gather with an index of other dimensions")
    axis = dim % a.ndim if a.ndim else 0
    if a.ndim == 2 and axis == 1 and places.shape == (a.shape[0], 1):
        refuse_negative(places)
        key: Any = (tape.counted(len(a)), places[:, 0])
        out = a[key][:, None]
        alone = True
    else:
        key = _grid(a, axis, places)
        out = a[key]
        alone = bool(places.ndim) and places.shape[axis] == 1
    if not recording(x):
        return Array(out, tape)

    def back(g: Value) -> None:
        grad = numpy.zeros_like(a)
        if alone:
            grad[key] = g[:, 0] if g.ndim == 2 and key[0].ndim == 1 else g
        else:
            numpy.add.at(grad, key, g)
        accumulate(x, grad)

    return recorded(out, tape, back)


def take_along_dim(x: Any, indices: Any, dim: int | None = None) -> Array:
    """`gather` with an index that is broadcast."""
    tape = tape_of(x, indices)
    x, indices = as_array(tape, x), as_array(tape, indices)
    if dim is None:
        return gather(x_flat(x), 0, x_flat(indices))
    axis = dim % x.value.ndim
    shape = list(
        numpy.broadcast_shapes(
            *[
                tuple(1 if i == axis else n for i, n in enumerate(v.value.shape))
                for v in (x, indices)
            ]
        )
    )
    whole = [*shape[:axis], x.value.shape[axis], *shape[axis + 1 :]]
    wide = mapped(x, numpy.broadcast_to(x.value, whole), lambda g: g)
    places = [*shape[:axis], indices.value.shape[axis], *shape[axis + 1 :]]
    return gather(wide, axis, Array(numpy.broadcast_to(indices.value, places), tape))


def x_flat(x: Array) -> Array:
    """All numbers in one row."""
    return mapped(x, x.value.reshape(-1), lambda g: g.reshape(x.value.shape))


def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Array:
    """x with the numbers of src added at the places of the index along a dimension."""
    tape = tape_of(x, index, src)
    x, index, src = as_array(tape, x), as_array(tape, index), as_array(tape, src)
    if x.value.dtype != src.value.dtype:
        raise UnsupportedError("scatter_add of another dtype")
    places = index.value
    key = _grid(x.value, dim % x.value.ndim, places)
    part = tuple(slice(0, n) for n in places.shape)
    out = x.value.copy()
    numpy.add.at(out, key, src.value[part])
    if not recording(x, src):
        return Array(out, tape)

    def back(g: Value) -> None:
        accumulate(x, g)
        if src.requires_grad:
            grad = numpy.zeros_like(src.value)
            grad[part] = g[key]
            accumulate(src, grad)

    return recorded(out, tape, back)


def one_hot(x: Array, num_classes: int = -1) -> Array:
    """A row of zeros with a one at the place that each number tells."""
    places = x.value
    if places.dtype != numpy.int64:
        raise UnsupportedError("one_hot of other numbers than int64")
    classes = int(places.max()) + 1 if num_classes == -1 else num_classes
    if places.size and (places.min() < 0 or places.max() >= classes):
        raise UnsupportedError("one_hot of a number beyond the classes")
    return Array((places[..., None] == numpy.arange(classes)).astype(numpy.int64), x.tape)


def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    """Rows of the weight."""
    if padding_idx is not None or max_norm is not None or scale_grad_by_freq or sparse:
        raise UnsupportedError("embedding with other options")
    tape = tape_of(input, weight)
    rows = as_array(tape, input).value
    refuse_negative(rows)
    return _rows(as_array(tape, weight), rows)


def refuse_negative(places: Value) -> None:
    """Refuse places before the first one, which NumPy counts from the end and torch does not."""
    if places.size and places.min() < 0:
        raise UnsupportedError("an index below 0")


def _grid(a: Value, axis: int, places: Value) -> tuple[Any, ...]:
    """The key that takes the places along one axis, and each its own place along the others."""
    key: list[Any] = [
        numpy.arange(n).reshape([-1 if i == other else 1 for i in range(places.ndim)])
        for other, n in enumerate(places.shape)
    ]
    if places.size and (places.min() < 0 or places.max() >= a.shape[axis]):
        raise UnsupportedError("an index beyond the dimension")
    if key:
        key[axis] = places
    return tuple(key)
