"""What arrays are computed with: NumPy over the tensors' own memory on the CPU, torch elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

__all__ = ["Array", "Backend", "NumpyBackend", "TorchBackend"]

Array: TypeAlias = Any
"""A `numpy.ndarray` or a `torch.Tensor`, whichever the backend computes with."""

Product: TypeAlias = Callable[[Array, Array], Array]


# Types are compared sooner by identity; what is no singleton goes the longer way.
_FLOAT64, _INT64 = numpy.dtype(numpy.float64), numpy.dtype(numpy.int64)

# einsum takes twice as long; vecdot came with NumPy 2.
_dots: Any = getattr(numpy, "vecdot", functools.partial(numpy.einsum, "nd,nd->n"))


class NumpyBackend:
    """NumPy: a tenth of torch's cost per call, which is what a single decision consists of."""

    xp: Any = numpy
    # For small matrices the operator @ takes twice as long, and the function half as much more.
    product: Product = staticmethod(numpy.ndarray.dot)
    """The matrix product."""

    def view(self, tensor: Tensor) -> Array:
        """The tensor's own memory: what is written to one is read from the other."""
        return tensor.numpy()

    def floats(self, values: Any) -> Array:
        """The values in float64, without a copy if they are that already."""
        if type(values) is numpy.ndarray and values.dtype is _FLOAT64:
            return values
        return numpy.asarray(values, dtype=numpy.float64)

    def column(self, values: Any) -> Array:
        """The values in float64, one per row."""
        if type(values) is numpy.ndarray and values.dtype is _FLOAT64 and values.ndim == 1:
            return values
        return numpy.asarray(values, dtype=numpy.float64).reshape(-1)

    def array(self, values: Any) -> Array:
        """The values as they are: float32 rows stay half as long until they are used."""
        return numpy.asarray(values)

    def integers(self, values: Any) -> Array:
        """The values as whole numbers, one per row."""
        if type(values) is numpy.ndarray and values.dtype is _INT64 and values.ndim == 1:
            return values
        return numpy.asarray(values).astype(numpy.int64, copy=False).reshape(-1)

    def zeros(self, *shape: int) -> Array:
        """Float64 zeros."""
        return numpy.zeros(shape)

    def eye(self, size: int) -> Array:
        """The float64 identity."""
        return numpy.eye(size)

    def outer(self, column: Array, row: Array, scratch: Array) -> Array:
        """The product of a column with a row; `scratch` may be used for it."""
        # A matrix product of depth one is twice as fast as broadcasting.
        return column[:, None].dot(row[None, :], scratch)

    def square(self, values: Array) -> float:
        """The sum of squares: not finite if any value is not, which vdot does not warn about."""
        return float(numpy.vdot(values, values))

    def dots(self, left: Array, right: Array) -> Array:
        """The inner product of each row (n, d) of one with that of the other."""
        return _dots(left, right)

    def by_group(self, groups: Array, count: int) -> tuple[Array, list[tuple[int, int]]]:
        """The order that brings rows of one group together, and (group, rows) for each found."""
        # Sorting is linear for 16-bit keys only.
        keys = groups.astype(numpy.uint16) if count <= 1 << 16 else groups
        found = numpy.bincount(groups, minlength=count)
        present = found.nonzero()[0]
        order = keys.argsort(kind="stable")
        return order, list(zip(present.tolist(), found[present].tolist(), strict=True))

    def tensor(self, array: Array) -> Tensor:
        """A tensor over the array's memory."""
        return torch.from_numpy(array)

    def to_numpy(self, array: Array) -> Array:
        """The array itself."""
        return array


class TorchBackend:
    """torch on one device."""

    xp: Any = torch
    product: Product = staticmethod(torch.matmul)
    """The matrix product."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def view(self, tensor: Tensor) -> Array:
        """The tensor itself."""
        return tensor

    def floats(self, values: Any) -> Array:
        """The values in float64 on the device."""
        return torch.as_tensor(values, dtype=torch.float64, device=self.device)

    def column(self, values: Any) -> Array:
        """The values in float64 on the device, one per row."""
        return self.floats(values).reshape(-1)

    def array(self, values: Any) -> Array:
        """The values on the device, their type as it is."""
        return torch.as_tensor(values, device=self.device)

    def integers(self, values: Any) -> Array:
        """The values as whole numbers on the device, one per row."""
        return torch.as_tensor(values, device=self.device).long().reshape(-1)

    def zeros(self, *shape: int) -> Array:
        """Float64 zeros on the device."""
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def eye(self, size: int) -> Array:
        """The float64 identity on the device."""
        return torch.eye(size, dtype=torch.float64, device=self.device)

    def outer(self, column: Array, row: Array, scratch: Array) -> Array:
        """The product of a column with a row; `scratch` may be used for it."""
        return torch.outer(column, row, out=scratch)

    def square(self, values: Array) -> float:
        """The sum of squares: not finite if any value is not."""
        return float((values * values).sum())

    def dots(self, left: Array, right: Array) -> Array:
        """The inner product of each row (n, d) of one with that of the other."""
        return (left * right).sum(-1)

    def by_group(self, groups: Array, count: int) -> tuple[Array, list[tuple[int, int]]]:
        """The order that brings rows of one group together, and (group, rows) for each found."""
        present, found = torch.unique(groups, return_counts=True)
        order = torch.argsort(groups, stable=True)
        return order, list(zip(present.tolist(), found.tolist(), strict=True))

    def tensor(self, array: Array) -> Tensor:
        """The tensor itself."""
        tensor: Tensor = array
        return tensor

    def to_numpy(self, array: Array) -> Array:
        """The tensor's values in memory of the CPU."""
        return array.cpu().numpy()


Backend: TypeAlias = NumpyBackend | TorchBackend
