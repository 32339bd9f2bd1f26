"""Trees of tensors, compared bit for bit or up to rounding."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from rlplug.trees import pack

_OF_TORCH = vars(nn.Module()).keys()


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


def tensors_of(tree: Any) -> dict[str, Tensor]:
    """Every tensor with its path."""
    return {path: value for path, value in leaves_of(tree) if isinstance(value, Tensor)}


def first_difference(one: Any, other: Any) -> str | None:
    """The path and values of the first difference of two trees; None if equal bit for bit."""
    ones, others = dict(leaves_of(one)), dict(leaves_of(other))
    for path in {**ones, **others}:
        if path not in ones or path not in others:
            return f"{path} is in only one of them"
        left, right = _plain(ones[path]), _plain(others[path])
        if type(left) is not type(right):
            return f"{path} is {type(left).__name__} and {type(right).__name__}"
        if not isinstance(left, numpy.ndarray):
            if left != right and not (left != left and right != right):
                return f"{path} is {left!r} and {right!r}"
        elif left.dtype != right.dtype or left.shape != right.shape:
            return f"{path} is {left.dtype}{left.shape} and {right.dtype}{right.shape}"
        elif left.tobytes() != right.tobytes():
            differing = numpy.flatnonzero(left.reshape(-1) != right.reshape(-1))
            first = differing[0] if len(differing) else 0
            values = f"{left.reshape(-1)[first]:.9g} and {right.reshape(-1)[first]:.9g}"
            return f"{path}: {len(differing)} of {left.size} values differ, the first {values}"
    return None


def largest_difference(one: Any, other: Any) -> tuple[str, float]:
    """The leaf of floats that differs most, relative to its largest value.

    Leaves that only one has, or that have different shapes, are left out.
    """
    others = dict(leaves_of(other))
    worst = ("", 0.0)
    for path, value in leaves_of(one):
        left, right = _plain(value), _plain(others.get(path))
        is_float = isinstance(left, numpy.ndarray) and left.dtype.kind == "f"
        if is_float and left.size and left.shape == numpy.shape(right):
            error = float(abs(left - right).max()) / max(float(abs(left).max()), 1e-3)
            if not error <= worst[1]:
                worst = (path, error)
    return worst


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
    """The tree with every tensor and array copied."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, numpy.ndarray):
        return tree.copy()
    if isinstance(tree, Mapping):
        return {name: cloned(part) for name, part in tree.items()}
    return type(tree)(map(cloned, tree)) if type(tree) in (list, tuple) else tree


def plain_attributes(owner: nn.Module, *, copied: bool = True) -> dict[str, Any]:
    """The numbers, texts, arrays, tensors and collections among a module's attributes."""
    attributes: dict[str, Any] = {}
    # What a class leaves out of copies it can find again.
    state: Any = owner.__getstate__()  # type: ignore[no-untyped-call] # of any object
    kept: dict[str, Any] = state if isinstance(state, dict) else vars(owner)
    for name in kept.keys() - _OF_TORCH:
        value = kept[name]
        # A generator is where it stands.
        value = getattr(getattr(value, "bit_generator", value), "state", value)
        with suppress(Exception):
            pack(value, {}, name)
            attributes[name] = copy.deepcopy(value) if copied else value
    return attributes


def to_array(value: Any) -> Any:
    """A tensor, array or sequence as a NumPy array."""
    return value.numpy(force=True) if isinstance(value, Tensor) else numpy.asarray(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.bfloat16:
        value = value.float()
    is_array = isinstance(value, Tensor | numpy.ndarray)
    return numpy.ascontiguousarray(to_array(value)) if is_array else value
