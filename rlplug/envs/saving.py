"""Save the state of environments in the middle of their episodes, where they can be pickled."""

from __future__ import annotations

import io
import pickle
from typing import Any

import attrs
import gymnasium
from gymnasium.utils import EzPickle
from gymnasium.vector import VectorEnv

from rlplug.envs.sync import SyncVector
from rlplug.errors import RequestError

__all__ = ["SavedEnvironments", "restore_environments", "save_environments"]

_LONGEST = 160


@attrs.frozen(kw_only=True)
class SavedEnvironments:
    """Environments in the middle of their episodes, or why they cannot be saved."""

    pickled: bytes = b""
    reason: str = ""
    """Why there is no pickle; empty if there is one."""


def save_environments(vector: VectorEnv[Any, Any, Any], beside: Any) -> SavedEnvironments:
    """Pickle a vector of environments, and what belongs to its current step."""
    inner = vector.envs if type(vector) is SyncVector else vector
    file = io.BytesIO()
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump((inner, beside))
        # What cannot be read back is not saved.
        pickle.loads(file.getvalue())
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return SavedEnvironments(reason=lines[0][:_LONGEST])
    return SavedEnvironments(pickled=file.getvalue())


def restore_environments(vector: VectorEnv[Any, Any, Any], pickled: bytes) -> Any:
    """Continue the saved episodes; returns what was saved beside them.

    Unpickling runs code: only for runs of one's own store.
    """
    try:
        inner, beside = pickle.loads(pickled)
    except Exception as error:
        raise RequestError(
            f"the saved environments cannot be read: {type(error).__name__}: {error}.",
            "try: the versions of the environment that the run was started with, or "
            "--set checkpoint.save_environments=false --allow-drift, which starts new episodes",
        ) from error
    if type(vector) is SyncVector:
        if not isinstance(inner, list) or len(inner) != vector.num_envs:
            raise _others()
        vector.replace(inner)
    else:
        if type(inner) is not type(vector) or inner.num_envs != vector.num_envs:
            raise _others()
        vector.__dict__.update(inner.__dict__)
    return beside


def _others() -> RequestError:
    return RequestError(
        "the saved environments are not those of this run.",
        "try: the sampling.num_envs and sampling.vectorization of the run that saved them",
    )


class _Pickler(pickle.Pickler):
    """Refuses objects that would be pickled without their state."""

    def reducer_override(self, value: Any) -> Any:
        # EzPickle saves the constructor's arguments only: the environment would start anew.
        if isinstance(value, EzPickle) and type(value).__getstate__ is EzPickle.__getstate__:
            kind = "environment" if isinstance(value, gymnasium.Env) else "object"
            raise TypeError(f"{kind} {type(value).__name__} pickles without its state (EzPickle)")
        return NotImplemented
