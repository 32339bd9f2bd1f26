"""The same numbers in other shapes, side by side, or in parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from rlplug.nn.arrays.array import Array, UnsupportedError, accumulate, recorded, recording
from rlplug.nn.arrays.dtypes import promoted
from rlplug.nn.arrays.elementwise import as_array, cast, tape_of

__all__ = [
    "broadcast_to",
    "cat",
    "chunk",
    "expand",
    "expand_as",
    "flatten",
    "flip",
    "mapped",
    "movedim",
    "pad",
    "permute",
    "reshape",
    "reshape_as",
    "sizes_of",
    "split",
    "squeeze",
    "stack",
    "t",
    "transpose",
    "unbind",
    "unflatten",
    "unsqueeze",
]

Value: TypeAlias = Any


def mapped(x: Array, out: Value, back: Callable[[Value], Value]) -> Array:
    """The same numbers elsewhere, and how their gradients return."""
    if not x.requires_grad or not torch.is_grad_enabled():
        return Array(out, x.tape)
    return recorded(out, x.tape, lambda g: accumulate(x, back(g)))


def reshape(x: Array, *shape: Any) -> Array:
    """In another shape, row by row."""
    a = x.value
    out = a.reshape(shape if type(shape[0]) is int else sizes_of(shape))
    return mapped(x, out, lambda g: g.reshape(a.shape))


def reshape_as(x: Array, other: Any) -> Array:
    """In the shape of another."""
    return reshape(x, tuple(other.shape))


def flatten(x: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    """Several dimensions as one."""
    shape = x.value.shape or (1,)
    if start_dim == len(shape) - 1 and end_dim == -1 and x.value.ndim:
        return x
    first, last = start_dim % len(shape), end_dim % len(shape)
    if first == last and x.value.ndim:
        return x
    return reshape(x, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


def unflatten(x: Array, dim: int, sizes: Sequence[int]) -> Array:
    """One dimension as several."""
    shape = x.value.shape
    axis = dim % len(shape)
    rest = -math.prod(sizes)
    whole = [shape[axis] // rest if n == -1 else n for n in sizes] if rest > 0 else list(sizes)
    return reshape(x, (*shape[:axis], *whole, *shape[axis + 1 :]))


def squeeze(x: Array, dim: int | Sequence[int] | None = None) -> Array:
    """Without dimensions of length 1."""
    a = x.value
    if dim == -1 or (dim == 1 and a.ndim == 2):
        # By far the commonest, and a view is had in a third of the time.
        if not a.ndim or a.shape[-1] != 1:
            return x
        return mapped(x, a[..., 0], lambda g: g[..., None])
    if dim is None:
        gone = {axis for axis, n in enumerate(a.shape) if n == 1}
    else:
        dims = (dim,) if isinstance(dim, int) else tuple(dim)
        gone = {_axis(one, a.ndim) for one in dims if a.ndim and a.shape[_axis(one, a.ndim)] == 1}
    if not gone:
        return x
    shape = [n for axis, n in enumerate(a.shape) if axis not in gone]
    return mapped(x, a.reshape(shape), lambda g: g.reshape(a.shape))


def unsqueeze(x: Array, dim: int) -> Array:
    """With one more dimension of length 1."""
    a = x.value
    if dim == -1:
        return mapped(x, numpy.asarray(a)[..., None], lambda g: g[..., 0])
    axis = _axis(dim, a.ndim + 1)
    out = a.reshape((*a.shape[:axis], 1, *a.shape[axis:]))
    return mapped(x, out, lambda g: g.reshape(a.shape))


def transpose(x: Array, dim0: int, dim1: int) -> Array:
    """With two dimensions in each other's place."""
    out = x.value.swapaxes(dim0, dim1)
    return mapped(x, out, lambda g: g.swapaxes(dim0, dim1))


def t(x: Array) -> Array:
    """A matrix turned over."""
    if x.value.ndim > 2:
        raise UnsupportedError("T of more than two dimensions")
    return mapped(x, x.value.T, lambda g: g.T)


def permute(x: Array, *dims: Any) -> Array:
    """With the dimensions in another order."""
    order = sizes_of(dims)
    return mapped(x, x.value.transpose(order), lambda g: g.transpose(numpy.argsort(order)))


def movedim(x: Array, source: int, destination: int) -> Array:
    """With one dimension in another place."""
    out = numpy.moveaxis(x.value, source, destination)
    return mapped(x, out, lambda g: numpy.moveaxis(g, destination, source))


def expand(x: Array, *sizes: Any) -> Array:
    """Seen again and again along dimensions of length 1."""
    wanted = sizes_of(sizes)
    shape = x.value.shape
    start = len(wanted) - len(shape)
    whole = tuple(shape[i - start] if n == -1 else n for i, n in enumerate(wanted))
    return mapped(x, numpy.broadcast_to(x.value, whole), lambda g: g)


def expand_as(x: Array, other: Any) -> Array:
    """Seen again and again, up to the shape of another."""
    return expand(x, tuple(other.shape))


def broadcast_to(x: Array, size: Sequence[int]) -> Array:
    """Seen again and again, up to a shape."""
    return expand(x, tuple(size))


def flip(x: Array, *dims: Any) -> Array:
    """The other way round along dimensions."""
    axes = sizes_of(dims)
    return mapped(x, numpy.flip(x.value, axes), lambda g: numpy.flip(g, axes))


def cat(arrays: Sequence[Any], dim: int = 0) -> Array:
    """One after the other along a dimension."""
    tape = tape_of(*arrays)
    parts = _of_one_dtype([as_array(tape, one) for one in arrays])
    values = [part.value for part in parts]
    axis = _axis(dim, values[0].ndim)
    if values[0].ndim == 2 and values[0].flags.f_contiguous:
        # One column per row of the batch, as linear layers leave it.
        out = numpy.concatenate([value.T for value in values], 1 - axis).T
    else:
        out = numpy.concatenate(values, axis)
    if not recording(*parts):
        return Array(out, tape)
    before: tuple[slice, ...] = (slice(None),) * axis

    def back(g: Value) -> None:
        start = 0
        for part in parts:
            stop = start + part.value.shape[axis]
            accumulate(part, g[(*before, slice(start, stop))])
            start = stop

    return recorded(out, tape, back)


def stack(arrays: Sequence[Any], dim: int = 0) -> Array:
    """Side by side along a new dimension."""
    tape = tape_of(*arrays)
    return cat([unsqueeze(as_array(tape, one), dim) for one in arrays], dim)


def split(x: Array, sizes: int | Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    """In parts of these lengths along a dimension."""
    a = x.value
    axis = _axis(dim, a.ndim)
    if isinstance(sizes, int):
        whole = a.shape[axis]
        sizes = [min(sizes, whole - start) for start in range(0, whole, sizes)] or [0]
    if sum(sizes) != a.shape[axis]:
        raise UnsupportedError("parts that are not the whole")
    before: tuple[slice, ...] = (slice(None),) * axis
    parts = []
    start = 0
    for size in sizes:
        parts.append(_part(x, (*before, slice(start, start + size))))
        start += size
    return tuple(parts)


def chunk(x: Array, chunks: int, dim: int = 0) -> tuple[Array, ...]:
    """In at most so many parts of equal length along a dimension."""
    whole = x.value.shape[dim]
    return split(x, max(-(-whole // chunks), 1), dim)


def unbind(x: Array, dim: int = 0) -> tuple[Array, ...]:
    """Each place along a dimension by itself."""
    axis = _axis(dim, x.value.ndim)
    before: tuple[slice, ...] = (slice(None),) * axis
    return tuple(_part(x, (*before, index)) for index in range(x.value.shape[axis]))


def pad(x: Array, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Array:
    """With more of one number at the ends of the last dimensions."""
    if mode != "constant" or min(pad) < 0:
        raise UnsupportedError(f"pad with mode {mode!r} and {pad}")
    a = x.value
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    widths = [(0, 0)] * (a.ndim - len(pairs)) + pairs[::-1]
    out = numpy.pad(a, widths, constant_values=a.dtype.type(value or 0))
    inside = tuple(slice(low, low + n) for (low, _), n in zip(widths, a.shape, strict=True))
    return mapped(x, out, lambda g: g[inside])


def _part(x: Array, key: tuple[Any, ...]) -> Array:
    a = x.value

    def back(g: Value) -> Value:
        grad = numpy.zeros_like(a)
        grad[key] = g
        return grad

    return mapped(x, a[key], back)


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


def sizes_of(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given one by one, or as one sequence."""
    if len(shape) == 1 and not isinstance(shape[0], int | Array | Tensor):
        shape = tuple(shape[0])
    return tuple(int(n) for n in shape)
