"""Nested columns: tensors, arrays, or mappings and tuples of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

__all__ = [
    "copied",
    "first_leaf",
    "leaves",
    "map_leaves",
    "map_pairs",
    "to_arrays",
    "to_tensors",
]


def first_leaf(column: Any) -> Any:
    """Any one tensor or array of a column."""
    while isinstance(column, tuple) or (
        not hasattr(column, "shape") and isinstance(column, Mapping)
    ):
        column = next(iter(column.values() if isinstance(column, Mapping) else column))
    return column


def leaves(column: Any) -> Iterator[Any]:
    """All tensors or arrays of a column."""
    if isinstance(column, Mapping):
        for part in column.values():
            yield from leaves(part)
    elif isinstance(column, tuple):
        for part in column:
            yield from leaves(part)
    else:
        yield column


def map_leaves(column: Any, change: Callable[[Any], Any]) -> Any:
    """The column with every tensor or array changed, nested as before."""
    # Nearly every column is one array or tensor, and isinstance of Mapping is slow.
    if type(column) is numpy.ndarray or isinstance(column, Tensor):
        return change(column)
    if isinstance(column, tuple):
        return tuple(map_leaves(part, change) for part in column)
    if isinstance(column, Mapping):
        return {name: map_leaves(part, change) for name, part in column.items()}
    return change(column)


def map_pairs(column: Any, other: Any, change: Callable[[Any, Any], Any]) -> Any:
    """`map_leaves` over two columns that are nested alike."""
    if type(column) is numpy.ndarray or isinstance(column, Tensor):
        return change(column, other)
    if isinstance(column, tuple):
        return tuple(map_pairs(part, two, change) for part, two in zip(column, other, strict=True))
    if isinstance(column, Mapping):
        return {name: map_pairs(part, other[name], change) for name, part in column.items()}
    return change(column, other)


def copied(leaf: Any) -> Any:
    """A copy of a tensor or array."""
    return leaf.copy() if isinstance(leaf, numpy.ndarray) else leaf.clone()


def to_tensors(column: Any) -> Any:
    """The column with arrays as tensors, which share their memory if torch can."""
    if isinstance(column, Tensor):
        return column
    if isinstance(column, Mapping):
        return {name: to_tensors(part) for name, part in column.items()}
    if isinstance(column, tuple):
        return tuple(to_tensors(part) for part in column)
    if not column.flags.writeable or any(stride < 0 for stride in column.strides):
        # torch has no read-only tensors and no negative strides.
        column = column.copy()
    return torch.from_numpy(column)


def to_arrays(column: Any) -> Any:
    """The column with tensors as arrays, without a copy if they are on the CPU."""
    if type(column) is numpy.ndarray:
        return column
    if isinstance(column, Tensor):
        return column.numpy(force=True)
    if isinstance(column, Mapping):
        return {name: to_arrays(part) for name, part in column.items()}
    if isinstance(column, tuple):
        return tuple(to_arrays(part) for part in column)
    return column
