"""The checkpoint of a model in MLflow as a pyfunc: what `mlflow.pyfunc.load_model` loads.

MLflow finds `_load_pyfunc` by the name of this module, which its file MLmodel has. The model holds
no code and no pickle: its algorithm is the plugin that is installed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from rlplug.batch.nested import first_leaf, tree_map
from rlplug.checkpoint.trust import own_copy
from rlplug.errors import RequestError, RlplugError
from rlplug.runs.loading import load_checkpoint
from rlplug.serving import Policy
from rlplug.serving.act_requests import MOST, Sessions
from rlplug.serving.description import flatten, nest
from rlplug.spaces import ACTION_MASK, mask_width

__all__ = ["PolicyModel"]

TRUST = "RLPLUG_TRUST"
"""Environment variable: `true` has the same effect as `--trust`, which MLflow cannot pass on."""


class PolicyModel:
    """Takes a batch of observations, and returns as many actions.

    Without a session, an episode begins with each call. A session, an id of the caller's choice,
    keeps frames and recurrent state from one call to the next.
    """

    def __init__(self, policy: Policy, most_sessions: int = MOST) -> None:
        self._policy = policy
        self._stateful = policy.has_memory or policy.frame_stack > 1
        self._sessions = Sessions(policy, most_sessions)
        self._lock = threading.Lock()

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Actions for observations, with the params `deterministic`, `session` and `reset`.

        `action_mask` holds the masks of all observations, one after the other.
        """
        try:
            return self._predict(model_input, params or {})
        except RlplugError as error:
            # Of other exceptions, a scoring server tells no more than that there was one.
            raise MlflowException(str(error), INVALID_PARAMETER_VALUE) from error

    def get_raw_model(self) -> Policy:
        """The policy, for `PyFuncModel.get_raw_model`."""
        return self._policy

    def _predict(self, given: Any, params: Mapping[str, Any]) -> Any:
        policy = self._policy
        is_table = bool(policy.features) and hasattr(given, "columns")
        rows = given if is_table else nest(policy.observation_space, given)
        n = len(given) if is_table else len(first_leaf(rows))
        mask = self._mask(params.get(ACTION_MASK), n)
        single = policy.frame_stack > 1 and numpy.shape(first_leaf(rows))[1:2] == (1,)
        if single:
            if n != 1:
                raise RequestError(
                    f"there are {n} observations of a single frame each.",
                    f"give one at a time, with a session, or stacks of {policy.frame_stack} frames",
                )
            rows = tree_map(lambda leaf: leaf[0, 0], rows)
            mask = None if mask is None else mask[0]
        session = str(params.get("session") or "") if self._stateful else ""
        with self._lock, numpy.errstate(all="ignore"):
            chosen = self._sessions.get(session, reset=bool(params.get("reset")))
            deterministic = params.get("deterministic")
            actions = chosen.predict(
                rows, True if deterministic is None else bool(deterministic), action_mask=mask
            )
        if single:
            actions = tree_map(lambda leaf: numpy.asarray(leaf)[None], actions)
        return flatten(actions)

    def _mask(self, given: Any, n: int) -> Any:
        flat = numpy.asarray([] if given is None else given).reshape(-1)
        if not flat.size:
            return None
        width = mask_width(self._policy.action_space)
        if width is None:
            raise RequestError(
                f"{ACTION_MASK}: this policy cannot use a mask, its actions are numbers within "
                "bounds.",
                f"leave {ACTION_MASK} out",
            )
        if flat.size != n * width:
            raise RequestError(
                f"{ACTION_MASK} has {flat.size} values, expected {n * width}: {width} for each of "
                f"{n} observations.",
                "give true for each action that may be chosen",
            )
        return flat.astype(bool).reshape(n, width)


def _load_pyfunc(path: str) -> PolicyModel:
    """Load the policy of a checkpoint; called by MLflow with the folder of its files."""
    checkpoint = own_copy(Path(path))
    trusted = os.environ.get(TRUST, "").lower() in ("1", "true", "yes")
    return PolicyModel(load_checkpoint(checkpoint, trust=trusted).policy)
