"""What code of plugins and modules may change, to be compared and put back."""

from __future__ import annotations

import copy
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import MethodType, ModuleType
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from rlplug.hooks.outside import OutsideNames
from rlplug.learner.state import random_state, set_random_state
from rlplug.nn.arrays import Array, UnsupportedError

__all__ = ["Snapshot"]

Access: TypeAlias = tuple[Callable[[], Any], Callable[[Any], object]]
"""Reads the content of an object, and writes it."""


class Snapshot:
    """All that plugins and modules hold, deep down, and what their code can bind outside of them.

    Objects stay the very objects that they were. An object whose state cannot be read, such as an
    iterator, is refused. What is outside is data as a rule: what is large, or cannot be read, is
    left alone.
    """

    def __init__(
        self,
        roots: Sequence[object],
        apart: Sequence[object],
        metrics: dict[str, dict[str, Any]],
        names: OutsideNames,
        restore_generators: Callable[[], object],
    ) -> None:
        self._roots = [*roots, *_small(names.values(), apart)]
        self._apart = apart
        """Objects that are not looked into: the learner and its hook calls."""
        self._names = names
        self._restore_generators = restore_generators
        self._kept: list[tuple[Access, Any]] = [(one, one[0]()) for one in self._accesses(metrics)]
        self._random = random_state(torch.device("cpu"))

    def keeps_arrays(self) -> bool:
        """Whether hooks kept arrays that they computed, where torch would have left tensors."""
        kept = (*self._names.values(), *_reachable(self._roots, self._apart))
        return any(type(value) is Array for value in kept)

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for (_, write), kept in self._kept:
                write(kept)
        self._restore_generators()
        set_random_state(self._random)

    def _accesses(self, metrics: dict[str, dict[str, Any]]) -> Iterator[Access]:
        yield self._names.values, self._names.bind
        for value in _reachable([*self._roots, metrics], self._apart):
            access = _access(value)
            if access is not None:
                yield access


def _small(values: Iterable[Any], apart: Sequence[object]) -> Iterator[Any]:
    """Those that hold few and small objects, all of which can be read."""
    for value in values:
        room = _MOST
        try:
            for one in _reachable([value], apart):
                room -= 1 + (one.numel() if isinstance(one, Tensor) else _length(one))
                if room < 0:
                    break
        except UnsupportedError:
            continue
        if room >= 0:
            yield value


def _length(value: Any) -> int:
    return value.size if isinstance(value, numpy.ndarray) else len(value) if _is_sized(value) else 0


def _is_sized(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | set | frozenset | deque)


def _access(value: Any) -> Access | None:
    """How to read and write the content of an object; None if it has none of its own."""
    if isinstance(value, Tensor):
        plain = value.detach()
        return plain.clone, plain.copy_
    if isinstance(value, numpy.ndarray):
        return (value.copy, partial(numpy.copyto, value)) if value.flags.writeable else None
    if isinstance(value, torch.Generator):
        return value.get_state, value.set_state
    if isinstance(value, numpy.random.BitGenerator):
        return lambda: copy.deepcopy(value.state), partial(setattr, value, "state")
    if isinstance(value, numpy.random.RandomState):
        return value.get_state, value.set_state
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    if isinstance(value, dict):
        return partial(dict, value), partial(_refill, value, value.update)
    if isinstance(value, set):
        return partial(set, value), partial(_refill, value, value.update)
    if isinstance(value, list | deque):
        return partial(list, value), partial(_refill, value, value.extend)
    names = _slots(value)
    return (partial(_read_slots, value, names), partial(_write_slots, value)) if names else None


def _read_slots(value: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _write_slots(value: Any, kept: Mapping[str, Any]) -> None:
    for name in _slots(value):
        if name in kept:
            object.__setattr__(value, name, kept[name])
        elif hasattr(value, name):
            object.__delattr__(value, name)


def _refill(value: Any, fill: Callable[[Any], Any], content: Any) -> None:
    value.clear()
    fill(content)


def _reachable(roots: Iterable[object], apart: Iterable[object]) -> Iterator[Any]:
    """The roots and all that they hold, each object once; what cannot change is left out."""
    seen = {id(one): one for one in apart}
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        if isinstance(value, MethodType):
            value = value.__self__
        if (
            id(value) in seen
            or isinstance(value, _CONSTANT)
            or (callable(value) and not _state(value))
        ):
            continue
        seen[id(value)] = value
        yield value
        if isinstance(value, _WHOLE) or type(value) is Array:
            continue
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple | set | frozenset | deque):
            waiting += value
        elif isinstance(value, numpy.random.Generator):
            waiting.append(value.bit_generator)
        elif isinstance(value, Iterator) or not (
            _state(value) or _slots(value) or type(value).__reduce__ is object.__reduce__
        ):
            raise UnsupportedError(f"a {type(value).__name__}, whose state cannot be restored")
        waiting += _state(value)
        waiting += [getattr(value, name) for name in _slots(value) if hasattr(value, name)]


def _state(value: Any) -> list[Any]:
    """The attributes of an object, as the one mapping that holds them."""
    attributes = getattr(value, "__dict__", None)
    return [attributes] if isinstance(attributes, dict) else []


def _slots(value: Any) -> list[str]:
    """The attributes of an object that are in slots, those as well that are not set yet."""
    names = [name for kind in type(value).__mro__ for name in _listed(kind)]
    return [name for name in names if name not in _NO_STATE]


def _listed(kind: type) -> Sequence[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = f"_{kind.__name__.lstrip('_')}"
    return [private + n if n.startswith("__") and not n.endswith("__") else n for n in names]


_NO_STATE = ("__dict__", "__weakref__")
_CONSTANT = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    type,
    ModuleType,
    Enum,
    PurePath,
    numpy.generic,
    numpy.dtype,
    torch.dtype,
    torch.device,
    logging.Logger,
)
_WHOLE = (
    Tensor,
    numpy.ndarray,
    torch.Generator,
    numpy.random.BitGenerator,
    numpy.random.RandomState,
    random.Random,
)
"""What is saved as it is, without a look at its parts."""

_MOST = 10_000
"""Parts that something outside of plugins may have to be looked into."""
