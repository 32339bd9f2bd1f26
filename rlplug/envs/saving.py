"""Save the state of environments in the middle of their episodes, where they can be pickled."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import gymnasium
from gymnasium.utils import EzPickle
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from rlplug.envs.state_comparison import difference
from rlplug.envs.sync import SyncVector
from rlplug.errors import RequestError
from rlplug.seeding import forked

__all__ = [
    "EnvironmentSaver",
    "SavedEnvironments",
    "other_environments",
    "restore_environments",
    "unreadable_environments",
]

_LONGEST = 160
_OWN_PICKLING = ("__getstate__", "__reduce__", "__reduce_ex__")
_TRUSTED = ("gymnasium", "rlplug", "numpy", "torch")
"""Packages whose own pickling is complete, or is found not to be by comparing."""


@attrs.frozen(kw_only=True)
class SavedEnvironments:
    """Environments in the middle of their episodes, or why they cannot be saved."""

    pickled: bytes = b""
    reason: str = ""
    """Why there is no pickle; empty if there is one."""


class EnvironmentSaver:
    """Pickles a vector of environments; the first pickle is read back and compared with them.

    What is read back is a copy: the environments themselves are only read.
    """

    def __init__(self, vector: VectorEnv[Any, Any, Any]) -> None:
        self._vector = vector
        self._is_checked = False
        self._incomplete = ""
        """Why a pickle lacks something; empty if it does not."""

    def save(self, beside: Any) -> SavedEnvironments:
        """The environments, and what belongs to their current step."""
        if self._incomplete:
            return SavedEnvironments(reason=self._incomplete)
        vector = self._vector
        if isinstance(vector, AsyncVectorEnv):
            return SavedEnvironments(reason="an AsyncVectorEnv keeps them in other processes")
        inner = vector.envs if isinstance(vector, SyncVector) else vector
        file = io.BytesIO()
        pickler = _Pickler(file, _packages(vector))
        try:
            pickler.dump((inner, beside))
            if not self._is_checked:
                self._incomplete = _lacks(inner, file.getvalue())
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            return SavedEnvironments(reason=lines[0][:_LONGEST])
        self._is_checked = True
        if self._incomplete:
            return SavedEnvironments(reason=self._incomplete)
        return SavedEnvironments(pickled=file.getvalue())


def _lacks(inner: Any, pickled: bytes) -> str:
    """What the copy in a pickle lacks."""
    # Constructors may draw from the global generators.
    with forked(0):
        copies, _ = pickle.loads(pickled)
    both = zip(inner, copies, strict=True) if isinstance(inner, list) else [(inner, copies)]
    for one, copy in both:
        if getattr(type(one), "pickles_whole", False):
            continue
        part = difference(one, copy, type(one).__name__)
        if part:
            return f"a copy by pickle differs in {part}"[:_LONGEST]
    return ""


def restore_environments(vector: VectorEnv[Any, Any, Any], pickled: bytes) -> Any:
    """Continue the saved episodes; returns what was saved beside them.

    Unpickling runs code: only for runs of one's own store.
    """
    try:
        inner, beside = pickle.loads(pickled)
    except Exception as error:
        raise unreadable_environments(error) from error
    if isinstance(vector, SyncVector):
        if not isinstance(inner, list) or len(inner) != vector.num_envs:
            raise other_environments()
        vector.replace(inner)
    else:
        if type(inner) is not type(vector) or inner.num_envs != vector.num_envs:
            raise other_environments()
        vector.__dict__.update(inner.__dict__)
    return beside


def unreadable_environments(error: Exception) -> RequestError:
    """The error for a state that cannot be unpickled here."""
    return RequestError(
        f"the saved environments cannot be read: {type(error).__name__}: {error}.",
        "try: the versions of the environment that the run was started with, or "
        "--set checkpoint.save_environments=false --allow-drift, which starts new episodes",
    )


def other_environments() -> RequestError:
    """The error for a state of other environments than are to continue."""
    return RequestError(
        "the saved environments are not those of this run.",
        "try: the sampling.num_envs and sampling.vectorization of the run that saved them",
    )


def _packages(vector: VectorEnv[Any, Any, Any]) -> frozenset[str]:
    """The packages that the environments and their wrappers come from, the trusted left out."""
    kinds = {type(one) for one in _layers(vector)}
    return frozenset(kind.__module__.partition(".")[0] for kind in kinds) - {*_TRUSTED}


def _layers(vector: VectorEnv[Any, Any, Any]) -> Iterator[Any]:
    starts: Iterable[Any] = vector.envs if isinstance(vector, SyncVector) else [vector]
    for one in starts:
        layer: Any = one
        while layer is not None:
            yield layer
            layer = getattr(layer, "__dict__", {}).get("env")


class _Pickler(pickle.Pickler):
    """Refuses objects that would be pickled without their state, or that may be."""

    def __init__(self, file: io.BytesIO, packages: frozenset[str]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._packages = packages
        self._reasons: dict[type[Any], str] = {}
        """Type → why its objects are refused; empty if they are not."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind not in self._reasons:
            self._reasons[kind] = self._reason(kind)
        if self._reasons[kind]:
            what = "environment" if isinstance(value, gymnasium.Env) else "object"
            raise TypeError(f"{what} {kind.__name__} {self._reasons[kind]}")
        return NotImplemented

    def _reason(self, kind: type[Any]) -> str:
        # EzPickle saves the constructor's arguments only: the environment would start anew.
        if issubclass(kind, EzPickle) and kind.__getstate__ is EzPickle.__getstate__:
            return "pickles without its state (EzPickle)"
        for base in kind.__mro__:
            for name in _OWN_PICKLING:
                # attrs and dataclasses add methods that are complete.
                written_in = getattr(vars(base).get(name), "__globals__", {}).get("__name__", "")
                if written_in.partition(".")[0] in self._packages:
                    return f"has a {name} of its own, which may leave state out"
        return ""
