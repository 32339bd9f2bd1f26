"""Save environments and games in the middle of their episodes, where they can be pickled."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.vector import VectorEnv

from rlplug.batch.nested import leaves
from rlplug.config.secrets import has_password
from rlplug.envs.sync import SyncVector
from rlplug.errors import RequestError, described
from rlplug.seeding import forked
from rlplug.spaces import find_mask

__all__ = [
    "EnvironmentSaver",
    "SavedEnvironments",
    "joined",
    "parts_of",
    "pickled",
    "random_actions",
    "restore_environments",
    "unpickled",
]

AnyVector: TypeAlias = "VectorEnv[Any, Any, Any]"

_LONGEST = 160
_DRAWING = "pygame"
"""The package whose objects only draw: they stay those of the environments that go on."""
_START_ANEW: Any = EzPickle.__getstate__
_BEFORE, _REPLAYED = 3, 10
"""Steps before a copy is made, and steps that both take then."""


@attrs.frozen(kw_only=True)
class SavedEnvironments:
    """Environments in the middle of their episodes, or why they cannot be saved."""

    pickled: bytes = b""
    reason: str = ""
    """Why there is no pickle; empty if there is one."""


class EnvironmentSaver:
    """Pickles vectors of environments.

    Before the first pickle, another vector, which `another` makes, takes some steps beside its
    unpickled copy: where they differ, nothing is saved.
    """

    def __init__(self, another: Callable[[], AnyVector] | None = None) -> None:
        self._another = another
        self._reason = ""

    def save(self, vector: AnyVector | list[Any], beside: Any) -> SavedEnvironments:
        """The environments of a vector, or these, and what belongs to their current step."""
        another, self._another = self._another, None
        if another is not None:
            try:
                self._reason = _difference(another())
            except Exception as error:
                self._reason = f"a copy cannot be tried: {_first_line(error)}"
        if self._reason:
            return SavedEnvironments(reason=self._reason)
        return pickled((_inner(vector), beside))


def restore_environments(vector: AnyVector, saved: bytes) -> Any:
    """Continue the saved episodes; returns what was saved beside them.

    Unpickling runs code: only for runs of one's own store.
    """
    inner, beside = unpickled(saved, _inner(vector))
    if isinstance(vector, SyncVector):
        if not isinstance(inner, list) or len(inner) != vector.num_envs:
            raise _other_environments()
        vector.replace(inner)
    else:
        if type(inner) is not type(vector) or inner.num_envs != vector.num_envs:
            raise _other_environments()
        vector.__dict__.update(inner.__dict__)
    return beside


def pickled(parts: Any) -> SavedEnvironments:
    """A pickle of environments, and of what is beside them."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump(parts)
    except Exception as error:
        return SavedEnvironments(reason=_first_line(error))
    if has_password(file.getvalue()):
        return SavedEnvironments(reason="they hold a URI with a password")
    return SavedEnvironments(pickled=file.getvalue())


def unpickled(saved: bytes, here: Any) -> Any:
    """What was pickled; what draws is that of the environments `here`."""
    pickler, unpickler = _Pickler(io.BytesIO()), _Unpickler(io.BytesIO(saved))
    try:
        pickler.dump(here)
        unpickler.drawing = pickler.drawing
        return unpickler.load()
    except Exception as error:
        raise RequestError(
            f"the saved environments cannot be read: {type(error).__name__}: {error}.",
            "try: the versions of the environment that the run was started with, or "
            "--set checkpoint.save_environments=false --allow-drift, which starts new episodes",
        ) from error


def joined(parts: Sequence[SavedEnvironments], beside: Any) -> SavedEnvironments:
    """One pickle of environments that were pickled one by one; none if one could not be."""
    for part in parts:
        if part.reason:
            return part
    return SavedEnvironments(pickled=pickle.dumps(([part.pickled for part in parts], beside)))


def parts_of(saved: bytes, num: int) -> tuple[list[bytes], Any]:
    """What `joined` was given: the pickles of `num` environments, and what was beside them."""
    parts, beside = unpickled(saved, None)
    if len(parts) != num:
        raise _other_environments()
    return parts, beside


def _other_environments() -> RequestError:
    """The error for a state of other environments than are to continue."""
    return RequestError(
        "the saved environments are not those of this run.",
        "try: the sampling.num_envs and sampling.vectorization of the run that saved them",
    )


def random_actions(vector: AnyVector, answer: Any, seed: int) -> Any:
    """Random actions, discrete ones among those that the masks in an answer allow."""
    masks, space = find_mask(*answer), vector.single_action_space
    if masks is None or not isinstance(space, spaces.Discrete):
        vector.action_space.seed(seed)
        return vector.action_space.sample()
    space.seed(seed)
    return numpy.array([space.sample(mask) for mask in numpy.asarray(masks, numpy.int8)])


def _difference(vector: AnyVector) -> str:
    """Why a new vector cannot be pickled, or goes on otherwise than its copy; empty if neither."""
    with forked(0):
        answer: Any = vector.reset(seed=0)
        for step in range(_BEFORE):
            seen, *_, infos = vector.step(random_actions(vector, answer, step))
            answer = seen, infos
        saved = pickled(_inner(vector))
        if saved.reason:
            return saved.reason
        inner = unpickled(saved.pickled, _inner(vector))
    copy = SyncVector([lambda: inner[0]]) if isinstance(vector, SyncVector) else inner
    for step in range(_REPLAYED):
        results: list[Any] = []
        for each in (vector, copy):
            with forked(step):
                *columns, infos = each.step(random_actions(vector, answer, step))
            results.append([numpy.asarray(leaf).tobytes() for leaf in leaves(tuple(columns))])
        if results[0] != results[1]:
            return "a copy by pickle goes on with other observations, rewards or ends"
        answer = columns[0], infos
    vector.close()
    return ""


def _inner(vector: Any) -> Any:
    return vector.envs if isinstance(vector, SyncVector) else vector


def _first_line(error: Exception) -> str:
    return described(error).splitlines()[0][:_LONGEST]


class _Pickler(pickle.Pickler):
    """Pickles all attributes, also of environments that would begin anew (EzPickle)."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.drawing: list[Any] = []
        """Objects that draw, in the order in which they were met."""

    def persistent_id(self, value: Any) -> int | None:
        if type(value).__module__.partition(".")[0] != _DRAWING:
            return None
        self.drawing.append(value)
        return len(self.drawing) - 1

    def reducer_override(self, value: Any) -> Any:
        kind: Any = type(value)
        if isinstance(value, EzPickle) and kind.__getstate__ is _START_ANEW:
            new: Any = copyreg.__dict__["__newobj__"]
            return new, (kind,), vars(value), None, None, _set_attributes
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    drawing: list[Any]

    def persistent_load(self, number: Any) -> Any:
        return self.drawing[number] if number < len(self.drawing) else None


def _set_attributes(value: Any, attributes: Mapping[str, Any]) -> None:
    vars(value).update(attributes)
