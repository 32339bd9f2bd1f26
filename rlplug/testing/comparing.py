"""States compared bit for bit: the first place where two of them differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

__all__ = ["digest", "first_difference", "largest_difference", "leaves_of"]


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
    """Where two trees differ and how, in words; None if they are the same bit for bit."""
    ones, others = dict(leaves_of(one)), dict(leaves_of(other))
    for path in {**ones, **others}:
        if path not in ones or path not in others:
            return f"{path} is there only once"
        left, right = _plain(ones[path]), _plain(others[path])
        if type(left) is not type(right):
            return f"{path} is {type(left).__name__} and {type(right).__name__}"
        if isinstance(left, numpy.ndarray):
            if left.dtype != right.dtype or left.shape != right.shape:
                return f"{path} is {left.dtype}{left.shape} and {right.dtype}{right.shape}"
            if left.tobytes() != right.tobytes():
                return f"{path}: {_apart(left, right)}"
        elif left != right and not (left != left and right != right):
            return f"{path} is {left!r} and {right!r}"
    return None


def largest_difference(one: Any, other: Any) -> tuple[str, float]:
    """The leaf of two trees of the same form that differs most, relative to its size."""
    others = dict(leaves_of(other))
    worst = ("", 0.0)
    for path, value in leaves_of(one):
        left, right = _plain(value), _plain(others[path])
        if isinstance(left, numpy.ndarray) and left.dtype.kind == "f" and left.size:
            size = max(float(abs(left).max()), 1e-3)
            apart = float(abs(left - right).max()) / size
            worst = max(worst, (path, apart), key=lambda pair: pair[1])
    return worst


def digest(tree: Any) -> str:
    """The same text for the same tree, in any process."""
    found = hashlib.sha256()
    for path, value in leaves_of(tree):
        plain = _plain(value)
        found.update(path.encode())
        if isinstance(plain, numpy.ndarray):
            found.update(f"{plain.dtype}{plain.shape}".encode() + plain.tobytes())
        else:
            found.update(repr(plain).encode())
    return found.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            value = value.to(torch.float32)
        return numpy.ascontiguousarray(value.numpy())
    if isinstance(value, numpy.ndarray):
        return numpy.ascontiguousarray(value)
    return value


def _apart(left: Any, right: Any) -> str:
    if left.dtype.kind == "b" or not left.ndim:
        return f"{left.tolist()} and {right.tolist()}" if left.size <= 4 else "values differ"
    apart = numpy.flatnonzero(left.reshape(-1) != right.reshape(-1))
    index = int(apart[0]) if len(apart) else 0
    values = f"{left.reshape(-1)[index]:.9g} and {right.reshape(-1)[index]:.9g}"
    return f"{len(apart)} of {left.size} values differ, the first {values}"
