"""Answers `POST /act`: reads the fields of a request, asks the policy, and writes plain values."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.errors import RequestError, did_you_mean
from rlplug.serving.agents import AgentPolicy
from rlplug.serving.description import json_type
from rlplug.serving.masks import read_masks
from rlplug.serving.policy import Policy
from rlplug.serving.sessions import MOST, Sessions

__all__ = ["FIELDS", "ActRequests", "plain"]

FIELDS = {
    "observation": "one observation",
    "observations": "a list of observations; the answer has as many actions",
    "action_mask": "true for each action that is allowed, beside observation",
    "action_masks": "a list of masks, beside observations",
    "deterministic": "true (default): the best action; false: explore as in training",
    "session": "id of a caller whose frames and recurrent state are kept",
    "reset": "true: an episode begins; a list: for which of the observations one does",
}

_LONGEST_SESSION = 200


class ActRequests:
    """A policy for several threads at once; only one of them is in it at a time."""

    def __init__(self, policy: Policy, most_sessions: int = MOST) -> None:
        self._space = policy.observation_space
        self.stateful = policy.has_memory or policy.frame_stack > 1
        """Whether actions depend on earlier observations of a session."""
        self._policy = policy
        self._sessions = Sessions(policy, most_sessions)
        self._lock = threading.Lock()

    def status(self) -> dict[str, int]:
        """How many sessions there are, and how many were evicted."""
        return {"open": len(self._sessions), "evicted": self._sessions.evicted}

    def answer(self, given: Any) -> dict[str, Any]:
        """The action or actions for the fields of a request."""
        fields = _checked_fields(given)
        several = "observations" in fields
        observation = fields["observations" if several else "observation"]
        if several:
            space = self._space_of(observation)
            observation, n = _batch(space, observation), len(observation)
        else:
            n = 1
            self._refuse_several(observation)
        mask = self._mask(fields, several, n, observation)
        reset = _checked_reset(fields.get("reset", False), several, n)
        with self._lock, numpy.errstate(all="ignore"):
            policy, new = self._policy_of(fields.get("session", ""), reset is True)
            actions = policy.predict(
                observation,
                fields.get("deterministic", True),
                action_mask=mask,
                episode_start=None if isinstance(reset, bool) else numpy.array(reset),
            )
        answered: dict[str, Any] = {"actions" if several else "action": plain(actions)}
        if new is not None:
            answered["new_session"] = new
        return answered

    def _policy_of(self, session: str, reset: bool) -> tuple[Policy, bool | None]:
        """The policy of a session, and whether the session begins with this request."""
        if not (session and self.stateful):
            return self._sessions.get(), None
        new = session not in self._sessions
        return self._sessions.get(session, reset=reset), new

    def _space_of(self, rows: Any) -> spaces.Space[Any]:
        """The space of several observations: some agents may be left out of all."""
        policy = self._policy
        if not (isinstance(policy, AgentPolicy) and isinstance(rows, list) and rows):
            return self._space
        first = rows[0]
        if not isinstance(first, dict):
            return self._space
        policy.refuse_others(first)
        return spaces.Dict({agent: policy.agents[agent].observation_space for agent in first})

    def _refuse_several(self, observation: Any) -> None:
        space, given = _first_part(self._space, observation)
        depth = 0
        while isinstance(given, list) and given:
            given, depth = given[0], depth + 1
        if depth > len(space.shape or ()) and not isinstance(space, spaces.Dict | spaces.Tuple):
            raise RequestError(
                "observation holds several observations.", "try: the field 'observations'"
            )

    def _mask(self, fields: Mapping[str, Any], several: bool, n: int, observation: Any) -> Any:
        name = "action_masks" if several else "action_mask"
        given = fields.get(name)
        if given is None:
            return None
        masks = read_masks(self._policy, name, given, n if several else None)
        if isinstance(self._policy, AgentPolicy) and isinstance(observation, Mapping):
            self._policy.refuse_masks_alone(observation, masks, name)
        return masks


def plain(value: Any) -> Any:
    """Arrays and NumPy's numbers, maybe nested, as what JSON has."""
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, numpy.ndarray | numpy.generic) else value


def _checked_fields(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise RequestError(
            f"the body must be a JSON object, found {json_type(given)}.",
            'try: {"observation": [...]}',
        )
    for name in given:
        if name not in FIELDS:
            near = did_you_mean(name, FIELDS, sentence=True)
            raise RequestError(
                f"unknown field {name!r}.{' ' if near else ''}{near}",
                f"fields: {', '.join(FIELDS)}",
            )
    fields = {name: value for name, value in given.items() if value is not None}
    if ("observation" in fields) == ("observations" in fields):
        found = "both" if "observation" in fields else "neither"
        raise RequestError(
            f"expected observation or observations, found {found}.",
            'try: {"observation": [...]} for one, {"observations": [[...], [...]]} for several',
        )
    one, other = ("action_mask", "action_masks")
    if "observation" in fields:
        one, other = other, one
    if one in fields:
        raise RequestError(f"{one} does not go with the observations given.", f"try: {other}")
    _check_type(fields, "deterministic", bool, "true or false")
    _check_type(fields, "session", str, "text")
    if len(fields.get("session", "")) > _LONGEST_SESSION:
        raise RequestError(
            f"session has {len(fields['session'])} characters.",
            f"give at most {_LONGEST_SESSION}",
        )
    return fields


def _check_type(fields: Mapping[str, Any], name: str, kind: type, wanted: str) -> None:
    if name in fields and not isinstance(fields[name], kind):
        raise RequestError(f"{name} must be {wanted}, found {json_type(fields[name])}.")


def _checked_reset(given: Any, several: bool, n: int) -> Any:
    """A bool, or a list of n of them."""
    if isinstance(given, bool):
        return given
    if not (several and isinstance(given, list) and len(given) == n):
        raise RequestError(
            f"reset must be true or false{f', or a list of {n}' if several else ''}, "
            f"found {json_type(given)}."
        )
    if not all(isinstance(one, bool) for one in given):
        raise RequestError("reset must hold nothing but true and false.")
    return given


def _batch(space: spaces.Space[Any], rows: Any) -> Any:
    """A list of observations as one observation with a first axis."""
    if not isinstance(rows, list) or not rows:
        found = "an empty list" if rows == [] else json_type(rows)
        raise RequestError(
            f"observations must be a list of observations, found {found}.",
            "try: the field 'observation' for a single one",
        )
    return _columns(space, rows, "observations")


def _columns(space: spaces.Space[Any], rows: list[Any], path: str) -> Any:
    if isinstance(space, spaces.Dict):
        for index, row in enumerate(rows):
            if not isinstance(row, dict) or set(row) != set(space.spaces):
                keys = ", ".join(space.spaces)
                raise RequestError(f"{path}[{index}] must be an object with the keys {keys}.")
        return {
            key: _columns(part, [row[key] for row in rows], f"{path}[...][{key!r}]")
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        for index, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != len(space.spaces):
                raise RequestError(f"{path}[{index}] must be a list of {len(space.spaces)} parts.")
        return tuple(
            _columns(part, [row[index] for row in rows], f"{path}[...][{index}]")
            for index, part in enumerate(space.spaces)
        )
    try:
        array = numpy.asarray(rows)
    except (ValueError, OverflowError) as error:
        raise RequestError(f"{path} differ in shape.") from error
    if array.shape[1:] != space.shape:
        raise RequestError(
            f"{path} have shape {array.shape[1:]} each, expected {space.shape}.",
            "GET /info tells what an observation looks like",
        )
    return array


def _first_part(space: spaces.Space[Any], given: Any) -> tuple[spaces.Space[Any], Any]:
    """The first array of an observation; the reader refuses one that is nested otherwise."""
    if isinstance(space, spaces.Dict) and isinstance(given, Mapping):
        for key, part in space.spaces.items():
            if key in given:
                return _first_part(part, given[key])
    if isinstance(space, spaces.Tuple) and isinstance(given, list) and given:
        return _first_part(space.spaces[0], given[0])
    return space, given
