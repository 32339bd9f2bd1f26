"""What an array tells of itself, other dtypes, and new arrays like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.nn.arrays import elementwise, shapes
from rlplug.nn.arrays.array import Array, UnsupportedError
from rlplug.nn.arrays.dtypes import NUMPY_DTYPES, TORCH_DTYPES

__all__ = [
    "cast",
    "caster",
    "clone",
    "detach",
    "dtype",
    "filled",
    "full_like",
    "index",
    "is_floating_point",
    "item",
    "likes",
    "ndim",
    "new_full",
    "new_tensor",
    "news",
    "numel",
    "plain",
    "same",
    "shape",
    "size",
    "to",
    "to_dtype",
    "to_numpy",
    "type_as",
    "view",
]

Function = Callable[..., Any]


def dtype(x: Array) -> torch.dtype:
    """torch's dtype of the numbers."""
    return TORCH_DTYPES[x.value.dtype.char]


def shape(x: Array) -> torch.Size:
    """The lengths of all dimensions."""
    return torch.Size(x.value.shape)


def size(x: Array, dim: int | None = None) -> Any:
    """The shape, or the length of one dimension."""
    return torch.Size(x.value.shape) if dim is None else x.value.shape[dim]


def ndim(x: Array) -> int:
    """How many dimensions there are."""
    ndim: int = x.value.ndim
    return ndim


def numel(x: Array) -> int:
    """How many numbers there are."""
    size: int = x.value.size
    return size


def item(x: Array) -> Any:
    """The only number, as Python's."""
    if x.value.size != 1:
        raise UnsupportedError("item() of more than one number")
    return x.value.item()


def index(x: Array) -> int:
    """The only whole number, as an index."""
    if x.value.dtype.kind not in "iub":
        raise TypeError("only whole numbers can be an index")
    if x.value.size != 1:
        raise UnsupportedError("several numbers as one index")
    return int(item(x))


def detach(x: Array) -> Array:
    """The same numbers, without a gradient."""
    return Array(x.value, x.tape)


def to_numpy(x: Array, *, force: bool = False) -> Any:
    """The numbers themselves."""
    if x.requires_grad and not force:
        raise UnsupportedError("numpy() of what requires a gradient")
    return numpy.asarray(x.value)


def clone(x: Array, *, memory_format: Any = None) -> Array:
    """A copy."""
    return shapes.mapped(x, x.value.copy(), lambda g: g)


def same(x: Array, *_: Any, **__: Any) -> Array:
    """The array itself: arrays are on the CPU."""
    return x


def to(x: Array, *args: Any, **kwargs: Any) -> Array:
    """Another dtype; the device has to be the CPU."""
    if len(args) == 1 and not kwargs and type(args[0]) is torch.dtype:
        return cast(x, args[0])
    kwargs.pop("non_blocking", None)
    kwargs.pop("copy", None)
    wanted = [*args, *kwargs.values()]
    if not set(kwargs) <= {"dtype", "device", "other"}:
        raise UnsupportedError("to with other options")
    for one in wanted:
        if isinstance(one, torch.dtype):
            x = cast(x, one)
        elif isinstance(one, Array | Tensor):
            x = to(x, one.dtype, one.device)
        elif isinstance(one, str | torch.device):
            if torch.device(one).type != "cpu":
                raise UnsupportedError(f"to {one}")
        elif one is not None and not isinstance(one, bool):
            raise UnsupportedError(f"to {one}")
    return x


def cast(x: Array, dtype: torch.dtype) -> Array:
    """Another dtype."""
    wanted = NUMPY_DTYPES.get(dtype)
    if wanted is None:
        raise UnsupportedError(f"numbers of {dtype}")
    return elementwise.cast(x, wanted)


def to_dtype(x: Array, dtype: torch.dtype) -> Array:
    """`Tensor.type` with a dtype."""
    return cast(x, dtype)


def type_as(x: Array, other: Any) -> Array:
    """The dtype of another."""
    return cast(x, other.dtype)


def caster(dtype: torch.dtype) -> Function:
    """Conversion to one dtype."""
    wanted = NUMPY_DTYPES[dtype]
    return lambda x: elementwise.cast(x, wanted)


def view(x: Array, *shape: Any) -> Array:
    """Another shape."""
    if isinstance(shape[0], torch.dtype):
        raise UnsupportedError("a view as another dtype")
    return shapes.reshape(x, *shape)


def filled(x: Array, number: Any, dtype: torch.dtype | None, shape: Any = None) -> Array:
    """One number everywhere, in the shape of x or another."""
    wanted = x.value.dtype if dtype is None else NUMPY_DTYPES[dtype]
    if shape is None:
        return Array(numpy.full_like(x.value, number, wanted), x.tape)
    return Array(numpy.full(shape, number, wanted), x.tape)


def likes(number: float) -> Function:
    """`torch.zeros_like` and the like."""
    return lambda x, *, dtype=None, device=None, **_: filled(x, number, dtype)


def full_like(
    x: Array, fill_value: Any, *, dtype: torch.dtype | None = None, device: Any = None
) -> Array:
    """One number everywhere."""
    return filled(x, plain(fill_value), dtype)


def news(number: float) -> Function:
    """`Tensor.new_zeros` and the like."""

    def new(x: Array, *size: Any, dtype: torch.dtype | None = None, device: Any = None) -> Array:
        return filled(x, number, dtype, shapes.sizes_of(size))

    return new


def new_full(
    x: Array, size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, device: Any = None
) -> Array:
    """One number everywhere, in another shape."""
    return filled(x, plain(fill_value), dtype, shapes.sizes_of((size,)))


def new_tensor(
    x: Array, data: Any, *, dtype: torch.dtype | None = None, device: Any = None
) -> Array:
    """Python's numbers, in the dtype of x."""
    if isinstance(data, Array | Tensor):
        raise UnsupportedError("new_tensor of a tensor")
    wanted = x.value.dtype if dtype is None else NUMPY_DTYPES[dtype]
    return Array(numpy.array(data, wanted), x.tape)


def plain(number: Any) -> Any:
    """A number that may be an array of one."""
    return number.item() if isinstance(number, Array | Tensor) else number


def is_floating_point(x: Array) -> bool:
    """Whether the numbers are fractional."""
    return bool(x.value.dtype.kind == "f")
