"""Answers `POST /act`: reads the fields of a request, asks the policy, and writes plain values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.errors import RequestError, did_you_mean
from rlplug.serving.agents import AgentPolicy
from rlplug.serving.policy import Policy
from rlplug.spaces import AnySpace

__all__ = ["FIELDS", "MOST", "ActRequests", "Sessions", "plain"]

FIELDS = {
    "observation": "one observation",
    "observations": "a list of observations; the answer has as many actions",
    "action_mask": "true for each action that is allowed, beside observation",
    "action_masks": "a list of masks, beside observations",
    "deterministic": "true (default): the best action; false: explore as in training",
    "session": "id of a caller whose frames and recurrent state are kept",
    "reset": "true: an episode begins; a list: for which of the observations one does",
}

MOST = 1000
"""Sessions that are kept."""
_LONGEST_SESSION = 200


class Sessions:
    """The policies of sessions, which share their weights; the one unused for longest is evicted.

    Not for several threads at once: callers hold a lock.
    """

    def __init__(self, policy: Policy, most: int = MOST) -> None:
        self._policy = policy
        self._most = most
        self.policies: OrderedDict[str, Policy] = OrderedDict()
        self.evicted = 0
        """How many were forgotten so far."""

    def get(self, name: str = "", *, reset: bool = False) -> Policy:
        """The policy of a session; without a name, one whose episodes begin now."""
        if not name:
            self._policy.reset()
            return self._policy
        policy = self.policies.get(name)
        if policy is None:
            policy = self.policies[name] = self._policy.fork()
            if len(self.policies) > self._most:
                self.policies.popitem(last=False)
                self.evicted += 1
        self.policies.move_to_end(name)
        if reset:
            policy.reset()
        return policy


class ActRequests:
    """A policy that answers requests, one after the other."""

    def __init__(self, policy: Policy, most_sessions: int = MOST) -> None:
        self.stateful = policy.has_memory or policy.frame_stack > 1
        """Whether actions depend on earlier observations of a session."""
        self._policy = policy
        self._sessions = Sessions(policy, most_sessions)

    def status(self) -> dict[str, int]:
        """How many sessions there are, and how many were evicted."""
        return {"open": len(self._sessions.policies), "evicted": self._sessions.evicted}

    def answer(self, given: Any) -> dict[str, Any]:
        """The action or actions for the fields of a request."""
        fields = _checked_fields(given)
        several = "observations" in fields
        observation = fields["observations" if several else "observation"]
        mask = fields.get("action_masks" if several else "action_mask")
        reset = fields.get("reset", False)
        if several:
            mask = None if mask is None else self._masks(mask)
            _check_reset(reset, len(observation))
            observation = _columns(self._space_of(observation), observation, "observations")
        else:
            _check_type(fields, "reset", bool, "true or false")
        session = fields.get("session", "") if self.stateful else ""
        new = session not in self._sessions.policies
        with numpy.errstate(all="ignore"):
            actions = self._sessions.get(session, reset=reset is True).predict(
                observation,
                fields.get("deterministic", True),
                action_mask=mask,
                episode_start=numpy.array(reset) if isinstance(reset, list) else None,
                several=several,
            )
        answered: dict[str, Any] = {"actions" if several else "action": plain(actions)}
        return {**answered, "new_session": new} if session else answered

    def _space_of(self, rows: list[Any]) -> AnySpace:
        """The space of several observations: some agents may be left out of all."""
        policy = self._policy
        if not isinstance(policy, AgentPolicy) or not isinstance(rows[0], dict):
            return policy.observation_space
        policy.refuse_others(rows[0])
        return spaces.Dict({agent: policy.agents[agent].observation_space for agent in rows[0]})

    def _masks(self, rows: Any) -> Any:
        """The masks of several observations; of several agents, by agent."""
        if not isinstance(self._policy, AgentPolicy):
            return rows
        try:
            return {agent: [row[agent] for row in rows] for agent in rows[0]}
        except (KeyError, IndexError, TypeError) as error:
            raise RequestError(
                "action_masks must be a list of objects with the same agents.",
                f"agents: {', '.join(self._policy.agents)}",
            ) from error


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
            f"the body must be a JSON object, found {_json_type(given)}.",
            'try: {"observation": [...]}',
        )
    for name in given:
        if name not in FIELDS:
            near = did_you_mean(name, FIELDS, sentence=True)
            raise RequestError(
                f"unknown field {name[:_LONGEST_SESSION]!r}. {near}".rstrip(),
                f"fields: {', '.join(FIELDS)}",
            )
    fields = {name: value for name, value in given.items() if value is not None}
    if ("observation" in fields) == ("observations" in fields):
        found = "both" if "observation" in fields else "neither"
        raise RequestError(
            f"expected observation or observations, found {found}.",
            'try: {"observation": [...]} for one, {"observations": [[...], [...]]} for several',
        )
    one, other = "action_mask", "action_masks"
    if "observation" in fields:
        one, other = other, one
    elif not (isinstance(fields["observations"], list) and fields["observations"]):
        raise RequestError(
            "observations must be a list of observations, and not empty.",
            "try: the field 'observation' for a single one",
        )
    if one in fields:
        raise RequestError(f"{one} does not go with the observations given.", f"try: {other}")
    _check_type(fields, "deterministic", bool, "true or false")
    _check_type(fields, "session", str, "text")
    if len(fields.get("session", "")) > _LONGEST_SESSION:
        raise RequestError(f"session has more than {_LONGEST_SESSION} characters.")
    return fields


def _check_type(fields: Mapping[str, Any], name: str, kind: type, wanted: str) -> None:
    if name in fields and not isinstance(fields[name], kind):
        raise RequestError(f"{name} must be {wanted}, found {_json_type(fields[name])}.")


def _check_reset(given: Any, n: int) -> None:
    is_list = isinstance(given, list) and len(given) == n
    if not all(isinstance(one, bool) for one in (given if is_list else [given])):
        raise RequestError(f"reset must be true or false, or a list of {n} of them.")


def _columns(space: AnySpace, rows: list[Any], path: str) -> Any:
    """A list of observations as one observation with a first axis."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return rows
    if isinstance(space, spaces.Dict):
        parts: dict[Any, AnySpace] = dict(space.spaces)
    else:
        parts = dict(enumerate(space.spaces))
    try:
        if any(len(row) != len(parts) for row in rows):
            raise KeyError
        columns = {key: [row[key] for row in rows] for key in parts}
    except (KeyError, TypeError) as error:
        kind = "an object" if isinstance(space, spaces.Dict) else "a list"
        raise RequestError(
            f"each of {path} must be {kind} with the parts {', '.join(map(str, parts))}."
        ) from error
    read = {
        key: _columns(part, columns[key], f"{path}[...][{key!r}]") for key, part in parts.items()
    }
    return read if isinstance(space, spaces.Dict) else tuple(read.values())


def _json_type(value: Any) -> str:
    """What a value that was read from JSON is, for messages."""
    names = {bool: "a boolean", str: "text", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "a number")
