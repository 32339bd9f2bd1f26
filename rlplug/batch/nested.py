"""Nested columns: tensors, arrays, or mappings and tuples of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

__all__ = [
    "builtin_dtype",
    "copied",
    "first_leaf",
    "leaves",
    "to_arrays",
    "to_tensors",
    "tree_map",
]


def first_leaf(column: Any) -> Any:
    """Any one tensor or array of a column."""
    while not hasattr(column, "shape") and isinstance(column, tuple | Mapping):
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


def tree_map(change: Callable[..., Any], column: Any, *others: Any) -> Any:
    """The column with every tensor or array changed, nested as before.

    `change` also gets the parts of other columns that are nested alike.
    """
    # Nearly every column is one array or tensor, and isinstance of Mapping is slow.
    if type(column) is numpy.ndarray or isinstance(column, Tensor):
        return change(column, *others)
    if isinstance(column, tuple):
        return tuple(tree_map(change, *parts) for parts in zip(column, *others, strict=True))
    if isinstance(column, Mapping):
        if not others:
            return {name: tree_map(change, part) for name, part in column.items()}
        return {
            name: tree_map(change, part, *(other[name] for other in others))
            for name, part in column.items()
        }
    return change(column, *others)


def copied(leaf: Any) -> Any:
    """A copy of a tensor or array."""
    return leaf.copy() if isinstance(leaf, numpy.ndarray) else leaf.clone()


def builtin_dtype(dtype: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """NumPy's own object for this format: unpickled arrays have another one that equals it."""
    known = numpy.dtype(dtype.char)
    return known if known == dtype else dtype


def to_tensors(column: Any) -> Any:
    """The column with arrays as tensors, which share their memory if torch can."""
    return tree_map(_tensor, column)


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


def _tensor(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    if not leaf.flags.writeable or min(leaf.strides, default=0) < 0:
        # torch has no read-only tensors and no negative strides.
        leaf = leaf.copy()
    return torch.from_numpy(leaf)
