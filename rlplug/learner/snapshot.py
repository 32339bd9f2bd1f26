"""What hooks may change, put back after a trial: modules, plugins, random generators."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.learner.state import random_state, set_random_state
from rlplug.nn.arrays import Array, UnsupportedError

__all__ = ["Snapshot"]


class Snapshot:
    """What hooks may change: modules, plugins and all that they hold, put back in place.

    Objects stay the very objects that they were. An object whose state cannot be read, such as an
    iterator, is refused: then there is no trial.
    """

    def __init__(
        self,
        roots: Sequence[object],
        apart: Sequence[object],
        metrics: dict[str, dict[str, Any]],
        restore_generators: Callable[[], object],
    ) -> None:
        self._roots = roots
        self._apart = apart
        """Objects that are not looked into: the learner and its hook calls."""
        self._restores: list[Callable[[], Any]] = []
        for value in _reachable([*roots, metrics], apart):
            self._save(value)
        self._restore_generators = restore_generators
        self._random = random_state(torch.device("cpu"))

    def keeps_arrays(self) -> bool:
        """Whether hooks kept arrays that they computed, where torch would have left tensors."""
        return any(type(value) is Array for value in _reachable(self._roots, self._apart))

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for restore in self._restores:
                restore()
        self._restore_generators()
        set_random_state(self._random)

    def _save(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._restores.append(partial(value.detach().copy_, value.detach().clone()))
        elif isinstance(value, numpy.ndarray):
            if value.flags.writeable:
                self._restores.append(partial(numpy.copyto, value, value.copy()))
        elif isinstance(value, torch.Generator):
            self._restores.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, numpy.random.BitGenerator):
            self._restores.append(partial(setattr, value, "state", copy.deepcopy(value.state)))
        elif isinstance(value, numpy.random.RandomState):
            self._restores.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self._restores.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, dict):
            self._restores.append(partial(_refill, value.clear, value.update, dict(value)))
        elif isinstance(value, list | deque):
            self._restores.append(partial(_refill, value.clear, value.extend, list(value)))
        elif isinstance(value, set):
            self._restores.append(partial(_refill, value.clear, value.update, set(value)))
        else:
            for name in _slots(value):
                held = getattr(value, name)
                self._restores.append(partial(object.__setattr__, value, name, held))


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
        waiting += [getattr(value, name) for name in _slots(value)]


def _state(value: Any) -> list[Any]:
    """The attributes of an object, as the one mapping that holds them."""
    attributes = getattr(value, "__dict__", None)
    return [attributes] if isinstance(attributes, dict) and attributes else []


def _slots(value: Any) -> list[str]:
    """The attributes of an object that are in slots."""
    names = [name for kind in type(value).__mro__ for name in _listed(kind)]
    return [name for name in names if name not in _NO_STATE and hasattr(value, name)]


def _listed(kind: type) -> Sequence[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = f"_{kind.__name__.lstrip('_')}"
    return [private + n if n.startswith("__") and not n.endswith("__") else n for n in names]


def _refill(clear: Callable[[], Any], fill: Callable[[Any], Any], content: Any) -> None:
    clear()
    fill(content)


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
