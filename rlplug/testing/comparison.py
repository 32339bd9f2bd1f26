"""Trees of tensors, compared bit for bit or up to rounding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.testing.report import CheckFailed

__all__ = [
    "cloned",
    "digest",
    "first_difference",
    "largest_difference",
    "leaves_of",
    "relative_difference",
    "require_close",
    "require_equal",
]


def require_equal(one: Any, other: Any, looked_for: str, look_at: str, *, found: str = "") -> None:
    """Fail a check unless two trees are equal bit for bit; `found` stands before the difference."""
    difference = first_difference(one, other)
    if difference is not None:
        raise CheckFailed(looked_for, found + difference, look_at)


def require_close(one: Any, other: Any, tolerance: float, looked_for: str, look_at: str) -> None:
    """Fail a check if a leaf differs by more than this fraction of its largest value."""
    path, error = largest_difference(one, other)
    if error > tolerance:
        raise CheckFailed(looked_for, f"{path} differs by {error:.1%} of its size", look_at)


def leaves_of(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested mappings and sequences with its path."""
    if isinstance(tree, Mapping):
        for name, part in tree.items():
            yield from leaves_of(part, f"{path}.{name}" if path else str(name))
    elif isinstance(tree, list | tuple):
        for index, part in enumerate(tree):
            yield from leaves_of(part, f"{path}[{index}]")
    else:
        yield path, tree


def first_difference(one: Any, other: Any) -> str | None:
    """The path and values of the first difference of two trees; None if equal bit for bit."""
    ones, others = dict(leaves_of(one)), dict(leaves_of(other))
    for path in {**ones, **others}:
        if path not in ones or path not in others:
            return f"{path} is in only one of them"
        left, right = _plain(ones[path]), _plain(others[path])
        if type(left) is not type(right):
            return f"{path} is {type(left).__name__} and {type(right).__name__}"
        if isinstance(left, numpy.ndarray):
            if left.dtype != right.dtype or left.shape != right.shape:
                return f"{path} is {left.dtype}{left.shape} and {right.dtype}{right.shape}"
            if left.tobytes() != right.tobytes():
                return f"{path}: {_values(left, right)}"
        elif left != right and not (left != left and right != right):
            return f"{path} is {left!r} and {right!r}"
    return None


def digest(tree: Any) -> str:
    """A hash of a tree, the same in any process."""
    found = hashlib.sha256()
    for path, value in leaves_of(tree):
        plain = _plain(value)
        found.update(path.encode())
        if isinstance(plain, numpy.ndarray):
            found.update(f"{plain.dtype}{plain.shape}".encode() + plain.tobytes())
        else:
            found.update(repr(plain).encode())
    return found.hexdigest()


def cloned(tree: Any) -> Any:
    """The tree with every tensor copied."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, Mapping):
        return {name: cloned(part) for name, part in tree.items()}
    if isinstance(tree, list):
        return [cloned(part) for part in tree]
    return tuple(cloned(part) for part in tree) if isinstance(tree, tuple) else tree


def largest_difference(one: Any, other: Any) -> tuple[str, float]:
    """The leaf that differs most, relative to its largest value."""
    others = dict(leaves_of(other))
    worst = ("", 0.0)
    for path, value in leaves_of(one):
        found = (path, relative_difference(value, others[path]))
        worst = max(worst, found, key=lambda pair: pair[1])
    return worst


def relative_difference(one: Any, other: Any) -> float:
    """How much two leaves differ, relative to the largest value; 0 where they hold no floats."""
    left, right = _plain(one), _plain(other)
    if not isinstance(left, numpy.ndarray) or left.dtype.kind != "f" or not left.size:
        return 0.0
    size = max(float(abs(left).max()), 1e-3)
    return float(abs(left - right).max()) / size


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            value = value.to(torch.float32)
        return numpy.ascontiguousarray(value.numpy())
    if isinstance(value, numpy.ndarray):
        return numpy.ascontiguousarray(value)
    return value


def _values(left: Any, right: Any) -> str:
    if left.dtype.kind == "b" or not left.ndim:
        return f"{left.tolist()} and {right.tolist()}" if left.size <= 4 else "values differ"
    differing = numpy.flatnonzero(left.reshape(-1) != right.reshape(-1))
    index = int(differing[0]) if len(differing) else 0
    values = f"{left.reshape(-1)[index]:.9g} and {right.reshape(-1)[index]:.9g}"
    return f"{len(differing)} of {left.size} values differ, the first {values}"
