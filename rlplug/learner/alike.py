"""Which modules are alike, so that the code of one can run for all, and whether they still are."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from operator import attrgetter, is_
from types import BuiltinFunctionType, FunctionType
from typing import Any

import attrs
import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from rlplug.learner.state import update_digest

__all__ = ["Watched", "has_global_hooks", "structure"]


def structure(module: nn.Module) -> Hashable | None:
    """What must be the same in alike modules: types, shapes, and attributes of all parts.

    None for a module that has to be by itself: with hooks, or with attributes that may be changed
    in place, such as lists and objects.
    """
    places = {id(part): name for name, part in module.named_modules()}
    found: list[Hashable] = []
    for name, part in module.named_modules():
        if any(map(vars(part).get, _HOOKS)) or not _has_plain_state(part):
            return None
        found.append((name, type(part)))
        for key, value in sorted(_attributes(part).items()):
            known = _known(key, value, places)
            if known is None:
                return None
            found.append((key, known))
    return tuple(found)


class Watched:
    """What is looked at in every update: whether something in one of the modules is replaced."""

    def __init__(self) -> None:
        self._parts: list[nn.Module] = []
        self._types: list[type] = []
        self._tables: list[dict[str, Any]] = []
        """The tables of attributes, layers and tensors of every part, and how many there were."""
        self._sizes: list[int] = []
        self._holders: list[dict[str, Any]] = []
        """The table of each of them, beside its name and its value when it was seen.

        A list for each, as they are compared in every update without a step of Python.
        """
        self._keys: list[str] = []
        self._values: list[Any] = []
        self._hooks: list[Any] = []
        self._hooked: list[bool] = []
        """Whether there were hooks in each table of hooks."""
        self._params: list[nn.Parameter] = []
        self._plain: list[Any] = []
        """Of each parameter whether it is trained, and its hooks, as they were."""

    def add(self, module: nn.Module) -> None:
        """Look at this module, too."""
        for part in module.modules():
            self._parts.append(part)
            self._types.append(type(part))
            own = vars(part)
            hooks = list(map(own.__getitem__, _HOOKS))
            self._hooks += hooks
            self._hooked += map(bool, hooks)
            known = _attributes(part) if _has_plain_state(part) else own
            self._watch(own, list(known.keys() - _INTERNAL))
            for table in (part._parameters, part._buffers, part._modules):
                self._watch(table, list(table))
        params = list(module.parameters())
        self._params += params
        self._plain += map(_STATE_OF_PARAMETER, params)

    def changed(self) -> bool:
        """Whether a layer, a tensor, a hook or another attribute was replaced or added."""
        return (
            list(map(type, self._parts)) != self._types
            or list(map(len, self._tables)) != self._sizes
            or not all(map(is_, map(dict.get, self._holders, self._keys), self._values))
            or list(map(bool, self._hooks)) != self._hooked
            or list(map(_STATE_OF_PARAMETER, self._params)) != self._plain
        )

    def _watch(self, table: dict[str, Any], keys: list[str]) -> None:
        self._tables.append(table)
        self._sizes.append(len(table))
        self._holders += [table] * len(keys)
        self._keys += keys
        self._values += map(table.__getitem__, keys)


def has_global_hooks() -> bool:
    """Whether torch calls hooks for all modules there are."""
    return bool(_has_any_global_hook())  # type: ignore[no-untyped-call] # untyped in torch


def _known(key: str, value: Any, places: Mapping[int, str]) -> Hashable | None:
    """An attribute as something to compare; None if it may be changed in place."""
    if key in ("_parameters", "_buffers"):
        return _tensors(value)
    if key == "_modules":
        return tuple((name, one is None) for name, one in value.items())
    if key == "_non_persistent_buffers_set":
        return tuple(sorted(value))
    if key in _INTERNAL:
        return key
    return _constant(value, places)


def _tensors(table: Mapping[str, Tensor | None]) -> Hashable | None:
    found: list[Hashable] = []
    for name, one in table.items():
        if one is None:
            found.append(name)
            continue
        trained, *hooks = _STATE_OF_PARAMETER(one)
        if hooks != [None, None]:
            return None
        found.append((name, tuple(one.shape), one.dtype, one.device, trained))
    return tuple(found)


def _constant(value: Any, places: Mapping[int, str]) -> Hashable | None:
    """A value that nobody can change, as something to compare; None for any other."""
    kind = type(value)
    if kind in _CONSTANTS:
        return kind, repr(value)
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        # The same function, not one of the same code: it may hold other numbers.
        return "is", id(value)
    if isinstance(value, nn.Module):
        return places.get(id(value))
    if kind is tuple:
        parts = tuple(_constant(part, places) for part in value)
        return None if None in parts else parts
    if vars(kind).get("__setattr__") is vars(_Frozen)["__setattr__"]:
        fields = tuple(_constant(getattr(value, one.name), places) for one in attrs.fields(kind))
        return None if None in fields else (kind, fields)
    if kind.__module__.startswith(("rlplug.nn.", "gymnasium.spaces.")):
        # Distributions and spaces, which nobody changes.
        digest = hashlib.blake2b(digest_size=16)
        update_digest(digest, value, 8)
        return kind, digest.hexdigest()
    return None


def _attributes(part: nn.Module) -> dict[str, Any]:
    """The attributes of a part without caches of the core, of which its state has others."""
    state: dict[str, Any] = part.__getstate__()  # type: ignore[no-untyped-call] # untyped in torch
    return {key: value for key, value in vars(part).items() if state.get(key) is value}


def _has_plain_state(part: nn.Module) -> bool:
    """Whether its state is all that a part has, but for caches of the core."""
    where = getattr(type(part).__getstate__, "__module__", None)
    return where in (None, "torch.nn.modules.module") or where.startswith("rlplug.")


@attrs.frozen
class _Frozen:
    """Cannot be changed, and shows how others that cannot are made."""


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_INTERNAL = frozenset(vars(nn.Module())) - {"training"}
_STATE_OF_PARAMETER = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")

_CONSTANTS = frozenset(
    (
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        range,
        slice,
        torch.dtype,
        torch.device,
        torch.Size,
        numpy.float32,
        numpy.float64,
        numpy.int64,
    )
)
