"""Columns that are tensors, arrays, or mappings and tuples of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

__all__ = ["copied", "each", "first_leaf", "leaves", "mapped", "paired", "to_arrays", "to_tensors"]


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


def mapped(column: Any, change: Callable[[Tensor], Any]) -> Any:
    """The column with every tensor changed, nested as before."""
    if isinstance(column, Tensor):
        return change(column)
    if isinstance(column, Mapping):
        return {name: mapped(part, change) for name, part in column.items()}
    return tuple(mapped(part, change) for part in column)


def each(column: Any, change: Callable[[Any], Any]) -> Any:
    """`mapped` for columns of arrays as well as of tensors."""
    # Nearly every column is one array, and asking for a Mapping is slow.
    if type(column) is numpy.ndarray:
        return change(column)
    if isinstance(column, Mapping):
        return {name: each(part, change) for name, part in column.items()}
    if isinstance(column, tuple):
        return tuple(each(part, change) for part in column)
    return change(column)


def paired(column: Any, other: Any, change: Callable[[Any, Any], Any]) -> Any:
    """`each` over two columns that are nested alike."""
    if type(column) is numpy.ndarray:
        return change(column, other)
    if isinstance(column, Mapping):
        return {name: paired(part, other[name], change) for name, part in column.items()}
    if isinstance(column, tuple):
        return tuple(paired(part, two, change) for part, two in zip(column, other, strict=True))
    return change(column, other)


def copied(leaf: Any) -> Any:
    """A tensor or array of its own with the same numbers."""
    return leaf.copy() if isinstance(leaf, numpy.ndarray) else leaf.clone()


def to_tensors(column: Any) -> Any:
    """The column with arrays as tensors, without copies where torch can share the memory."""
    if isinstance(column, Tensor):
        return column
    if isinstance(column, Mapping):
        return {name: to_tensors(part) for name, part in column.items()}
    if isinstance(column, tuple):
        return tuple(to_tensors(part) for part in column)
    if not column.flags.writeable or any(stride < 0 for stride in column.strides):
        # A tensor cannot be read-only, nor run backwards.
        column = column.copy()
    return torch.from_numpy(column)


def to_arrays(column: Any) -> Any:
    """The column with tensors as arrays, without copies where they are on the CPU."""
    if type(column) is numpy.ndarray:
        return column
    if isinstance(column, Tensor):
        return column.numpy(force=True)
    if isinstance(column, Mapping):
        return {name: to_arrays(part) for name, part in column.items()}
    if isinstance(column, tuple):
        return tuple(to_arrays(part) for part in column)
    return column
