"""What a learner's state holds beside modules: generators, digests, and what a trial changed."""

from __future__ import annotations

import copy
import hashlib
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
from torch import Tensor, nn

from rlplug.errors import PluginError
from rlplug.hooks.calls import HookCalls
from rlplug.hooks.outside import OutsideNames
from rlplug.nn.arrays import Array, UnsupportedError

__all__ = [
    "Snapshot",
    "digest",
    "plugin_digests",
    "random_problem",
    "random_state",
    "refuse_unsaved",
    "set_random_state",
    "update_digest",
]

_DEPTH = 8


# -- global generators ----------------------------------------------------------------------------


def random_state(device: torch.device) -> dict[str, Any]:
    """The global generators of torch, NumPy and Python."""
    state: Any = numpy.random.get_state()
    name, keys, position, has_gauss, gauss = state
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [name, torch.from_numpy(keys.astype(numpy.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def set_random_state(saved: Mapping[str, Any], device: torch.device | None = None) -> None:
    """Put the global generators back; on a GPU that of `device`, which need not be the first."""
    torch.set_rng_state(saved["torch"])
    if saved["cuda"] is not None and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(saved["cuda"], device)
    name, keys, *rest = saved["numpy"]
    numpy.random.set_state((name, keys.numpy().astype(numpy.uint32), *rest))
    random.setstate(saved["python"])


def random_problem(saved: Mapping[str, Any]) -> str:
    """Why the global generators cannot be put back; empty if they can."""
    try:
        torch.Generator().set_state(saved["torch"])
        saved["cuda"]
        name, keys, *rest = saved["numpy"]
        numpy.random.RandomState().set_state((name, keys.numpy().astype(numpy.uint32), *rest))
        random.Random().setstate(saved["python"])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# -- digests of what plugins keep in their attributes -------------------------------------------


def plugin_digests(calls: HookCalls) -> dict[str, dict[str, str]]:
    """Plugin → attribute → digest, for the plugins that do not save their state."""
    saved = {one.name for one in calls.implementations("save_state")}
    return {
        one.name: {name: digest(value) for name, value in vars(one.plugin).items()}
        for one in calls.participants
        if one.name not in saved and hasattr(one.plugin, "__dict__")
    }


def refuse_unsaved(calls: HookCalls, before: Mapping[str, Mapping[str, str]]) -> None:
    """Raise if an update changed an attribute that no `save_state` hands over."""
    for plugin, after in plugin_digests(calls).items():
        known = before.get(plugin, {})
        changed = [name for name, found in after.items() if known.get(name) != found]
        if changed:
            label = next(one.label for one in calls.participants if one.name == plugin)
            raise PluginError(
                f"{label} changed its attribute {changed[0]!r} during an update, "
                "but has no 'save_state': a resumed run would go on differently.",
                "implement save_state and load_state, or keep it as a buffer of a module",
            )


def digest(value: Any) -> str:
    """A digest of a value."""
    found = hashlib.blake2b(digest_size=16)
    update_digest(found, value, _DEPTH)
    return found.hexdigest()


def update_digest(found: hashlib.blake2b, value: Any, depth: int) -> None:
    """Add a value to a digest: numbers by what they are, objects by what they hold."""
    found.update(type(value).__qualname__.encode())
    if isinstance(value, Tensor):
        found.update(str((value.shape, value.dtype)).encode())
        found.update(
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    elif isinstance(value, numpy.ndarray) and value.dtype != object:
        found.update(str((value.shape, value.dtype)).encode())
        found.update(numpy.ascontiguousarray(value).tobytes())
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        found.update(repr(value).encode())
    elif isinstance(value, torch.Generator):
        update_digest(found, value.get_state(), depth)
    elif isinstance(value, numpy.random.Generator):
        update_digest(found, value.bit_generator.state, depth)
    elif depth == 0:
        return
    elif isinstance(value, nn.Module):
        update_digest(found, value.state_dict(), depth - 1)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            update_digest(found, key, depth - 1)
            update_digest(found, part, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        found.update(str(len(value)).encode())
        for part in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            update_digest(found, part, depth - 1)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        update_digest(found, vars(value), depth - 1)


# -- what hooks may change, put back after a trial ------------------------------------------------


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
        names: OutsideNames,
        restore_generators: Callable[[], object],
    ) -> None:
        self._roots = roots
        self._names = names
        self._apart = apart
        """Objects that are not looked into: the learner and its hook calls."""
        self._restores: list[Callable[[], Any]] = [
            restore_generators,
            partial(names.bind, names.values()),
        ]
        for value in _reachable([*roots, metrics], apart):
            self._save(value)
        self._random = random_state(torch.device("cpu"))

    def keeps_arrays(self) -> bool:
        """Whether hooks kept arrays that they computed, where torch would have left tensors."""
        kept = (*self._names.values(), *_reachable(self._roots, self._apart))
        return any(type(value) is Array for value in kept)

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for restore in self._restores:
                restore()
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
                if hasattr(value, name):
                    held = getattr(value, name)
                    self._restores.append(partial(object.__setattr__, value, name, held))
                else:
                    self._restores.append(partial(_unset, value, name))


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


def _refill(clear: Callable[[], Any], fill: Callable[[Any], Any], content: Any) -> None:
    clear()
    fill(content)


def _unset(value: Any, name: str) -> None:
    if hasattr(value, name):
        object.__delattr__(value, name)


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
