"""Whether the copy of an environment has all of its state."""

from __future__ import annotations

import math
import pickle
import random
from collections import deque
from collections.abc import Iterator, Mapping, Set
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["difference"]

Pair: TypeAlias = tuple[Any, Any, str]
"""The same part of both, and its name."""

_BY_IDENTITY = (type, FunctionType, BuiltinFunctionType, ModuleType)
_PLAIN = (bool, int, str, bytes, complex, range, slice, type(None), type(...))
_MISSING = object()


def difference(one: Any, copy: Any, name: str) -> str:
    """The first part that is not the same in both, such as `Maze.walls`; empty without one.

    Only reads. Attributes, containers, arrays and generators are compared one by one; other
    objects of compiled types by their pickles.
    """
    open_pairs: list[Pair] = [(one, copy, name)]
    # Keeps what it has seen: an id is used again once its object is gone.
    seen: dict[int, Any] = {}
    while open_pairs:
        here, there, path = open_pairs.pop()
        if id(here) in seen:
            continue
        seen[id(here)] = here
        parts = _parts(here, there, path)
        if parts is None:
            return path
        open_pairs += parts
    return ""


def _parts(one: Any, copy: Any, path: str) -> list[Pair] | None:
    """What is left to be compared; None if these two differ."""
    if type(one) is not type(copy):
        return None
    if isinstance(one, _BY_IDENTITY):
        return [] if one is copy else None
    plain = _are_equal(one, copy)
    if plain is not None:
        return [] if plain else None
    if isinstance(one, MethodType):
        same = one.__func__ is copy.__func__
        return [(one.__self__, copy.__self__, path)] if same else None
    attributes = list(_attributes(one, copy, path))
    contents = _contents(one, copy, path)
    if contents is not None:
        return contents + attributes if len(one) == len(copy) else None
    if attributes or _has_attributes(one):
        return attributes
    return [] if _pickled(one) == _pickled(copy) else None


def _are_equal(one: Any, copy: Any) -> bool | None:
    """Whether two values without parts are equal; None if they have parts."""
    if type(one) in _PLAIN:
        return bool(one == copy)
    if type(one) is float:
        return bool(one == copy) or (math.isnan(one) and math.isnan(copy))
    if isinstance(one, numpy.ndarray):
        if one.dtype != copy.dtype or one.shape != copy.shape:
            return False
        return None if one.dtype.hasobject else bool(one.tobytes() == copy.tobytes())
    if isinstance(one, numpy.generic):
        return bool(one.tobytes() == copy.tobytes())
    if isinstance(one, Tensor):
        same_kind = one.dtype == copy.dtype and one.device == copy.device
        return same_kind and one.shape == copy.shape and _bytes(one) == _bytes(copy)
    if isinstance(one, torch.Generator):
        return bool(torch.equal(one.get_state(), copy.get_state()))
    if isinstance(one, Set):
        return bool(one == copy) or (_has_identities(one) and len(one) == len(copy))
    return None


def _bytes(tensor: Tensor) -> bytes:
    array: NDArray[Any] = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return array.tobytes()


def _contents(one: Any, copy: Any, path: str) -> list[Pair] | None:
    """The parts of a container or a generator, None for other objects."""
    if isinstance(one, numpy.ndarray):
        return _items(one.ravel().tolist(), copy.ravel().tolist(), path)
    if isinstance(one, list | tuple | deque):
        return _items(one, copy, path)
    if isinstance(one, Mapping):
        keys = _items(one, copy, f"{path}.keys()")
        pairs = zip(one.items(), copy.values(), strict=False)
        return keys + [(x, y, f"{path}[{key!r}]") for (key, x), y in pairs]
    return None


def _items(one: Any, copy: Any, path: str) -> list[Pair]:
    pairs = enumerate(zip(one, copy, strict=False))
    return [(x, y, f"{path}[{index}]") for index, (x, y) in pairs]


def _attributes(one: Any, copy: Any, path: str) -> Iterator[Pair]:
    """The attributes of both, also those that only one has, and the states of generators."""
    here, there = _state(one), _state(copy)
    for name in here.keys() | there.keys():
        yield here.get(name, _MISSING), there.get(name, _MISSING), f"{path}.{name}"


def _state(value: Any) -> dict[str, Any]:
    if isinstance(value, numpy.random.Generator):
        return {"state": value.bit_generator.state}
    if isinstance(value, numpy.random.RandomState):
        return {"state": value.get_state(legacy=False)}
    if isinstance(value, random.Random):
        return {"state": value.getstate()}
    found = dict(getattr(value, "__dict__", {}))
    for name in _slots(type(value)):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    return found


def _slots(kind: type[Any]) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                mangled = name.startswith("__") and not name.endswith("__")
                yield f"_{base.__name__.lstrip('_')}{name}" if mangled else name


def _has_attributes(value: Any) -> bool:
    """Whether all of its state is in attributes, of which it may have none."""
    kind = type(value)
    return hasattr(value, "__dict__") or any("__slots__" in one.__dict__ for one in kind.__mro__)


def _has_identities(values: Set[Any]) -> bool:
    """Whether some are equal to themselves only: a copy of such a set is never equal."""
    by_identity: Any = object.__eq__
    return any(type(one).__eq__ is by_identity for one in values)


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
