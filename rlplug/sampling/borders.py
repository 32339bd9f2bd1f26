"""What happens where one episode ends and the next begins, whichever way the vector resets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from gymnasium.vector import AutoresetMode

from rlplug.batch.nested import copied, each, paired
from rlplug.envs import Environments
from rlplug.errors import EnvironmentFailedError
from rlplug.feeds.experience import Finals
from rlplug.plugin import ActInput, Module

__all__ = ["Borders"]


class Borders:
    """One treatment of resets: at once, on the next step, or when it is told to.

    Final observations are kept, the step that only resets is marked, and memory starts afresh.
    """

    def __init__(self, environments: Environments, module: Module, *, keep_finals: bool) -> None:
        self.fresh_state: Any = module.initial_state(1)
        """The memory of one fresh episode; None without memory."""
        self._vector = environments.vector
        self._name = environments.name
        self._num_envs = environments.num_envs
        self._mode = environments.autoreset
        self._keep_finals = keep_finals
        self.matter = (
            keep_finals
            or self.fresh_state is not None
            or environments.autoreset != AutoresetMode.SAME_STEP
        )
        """Whether anything is to be done there."""
        self._ended = numpy.zeros(self._num_envs, dtype=bool)
        self._places: list[Any] = []
        self._finals: list[dict[str, Any]] = []

    @property
    def resting(self) -> Any:
        """Where the next step does nothing but reset; None if none ever does."""
        return self._ended if self._mode == AutoresetMode.NEXT_STEP else None

    def start(self) -> None:
        """Everything was reset."""
        self._ended = numpy.zeros(self._num_envs, dtype=bool)
        self._places, self._finals = [], []

    def cross(
        self,
        time: int,
        outcome: dict[str, Any],
        observations: Any,
        infos: Mapping[str, Any],
        act: ActInput,
    ) -> tuple[Any, Mapping[str, Any]]:
        """What will be acted on next; `outcome` learns which environments only reset."""
        if self._mode == AutoresetMode.NEXT_STEP:
            self._cross_late(outcome, act)
            return observations, infos
        if self._mode == AutoresetMode.SAME_STEP:
            if self._keep_finals or act.state is not None:
                self._cross_at_once(time, outcome, infos, act)
            return observations, infos
        ended = outcome["terminated"] | outcome["truncated"]
        if not numpy.count_nonzero(ended):
            return observations, infos
        rows = numpy.flatnonzero(ended)
        self._keep(time, rows, each(observations, lambda leaf: leaf[rows]), infos)
        self._forget(act, rows)
        return self._vector.reset(options={"reset_mask": ended})

    def take_finals(self) -> Finals | None:
        """The final observations since the last call."""
        if not self._places:
            return None
        # Mostly one: then there is nothing to join.
        places = self._places[0] if len(self._places) == 1 else numpy.concatenate(self._places)
        seen = self._finals[0]
        for more in self._finals[1:]:
            seen = {
                name: paired(column, more[name], lambda a, b: numpy.concatenate((a, b)))
                for name, column in seen.items()
                if name in more
            }
        self._places, self._finals = [], []
        return Finals(places, seen)

    def _cross_late(self, outcome: dict[str, Any], act: ActInput) -> None:
        only_reset = self._ended
        outcome["stepped"] = stepped = ~only_reset
        terminated, truncated = outcome["terminated"], outcome["truncated"]
        self._ended = (terminated | truncated) & stepped
        if act.state is not None and only_reset.any():
            self._forget(act, numpy.flatnonzero(only_reset))

    def _cross_at_once(
        self, time: int, outcome: dict[str, Any], infos: Mapping[str, Any], act: ActInput
    ) -> None:
        ended = outcome["terminated"] | outcome["truncated"]
        # Counting is four times as fast as asking for any.
        if not numpy.count_nonzero(ended):
            return
        rows = _ONLY if self._num_envs == 1 else ended.nonzero()[0]
        self._forget(act, rows)
        if not self._keep_finals:
            return
        known = infos.get("_final_obs")
        if known is None or numpy.count_nonzero(known.take(rows)) < len(rows):
            rows = self._with_finals(rows, known, outcome["truncated"])
        if len(rows):
            self._keep(time, rows, _picked(infos["final_obs"], rows), infos)

    def _with_finals(self, rows: Any, known: Any, truncated: Any) -> Any:
        """Those of the rows that have a final observation; it may be missing where none counts."""
        if known is None:
            known = numpy.zeros(self._num_envs, dtype=bool)
        if (truncated & ~known).any():
            raise EnvironmentFailedError(
                f"environment {self._name!r} truncates episodes without handing over 'final_obs': "
                "what follows cannot be valued.",
                "try: --set sampling.vectorization=sync",
            )
        return rows[known[rows]]

    def _keep(self, time: int, rows: Any, observations: Any, infos: Mapping[str, Any]) -> None:
        self._places.append(time * self._num_envs + rows)
        seen = {"observations": observations}
        if isinstance(observations, dict) and "action_mask" in observations:
            seen["action_mask"] = observations["action_mask"]
        elif "action_mask" in infos:
            last = infos.get("final_info", infos if self._mode == AutoresetMode.DISABLED else {})
            # Of a final state without a mask nothing is known: everything may be valued.
            every = numpy.ones_like(numpy.stack(list(infos["action_mask"])))
            masks = last.get("action_mask", every)
            seen["action_mask"] = numpy.stack([masks[row] for row in rows])
        self._finals.append(seen)

    def _forget(self, act: ActInput, rows: Any) -> None:
        """Let the memory of these environments start afresh; what was stored of it stays."""
        if act.state is None:
            return

        def restarted(leaf: Any, fresh: Any) -> Any:
            leaf = copied(leaf)
            leaf[rows] = fresh.numpy()[0] if isinstance(leaf, numpy.ndarray) else fresh[0]
            return leaf

        act.state = paired(act.state, self.fresh_state, restarted)


def _picked(finals: Any, rows: Any) -> Any:
    """The final observations of these rows, from a vector's array or column of objects."""
    if type(finals) is numpy.ndarray and finals.dtype != object:
        return finals.take(rows, axis=0)
    if isinstance(finals, Mapping):
        return {name: _picked(part, rows) for name, part in finals.items()}
    if isinstance(finals, tuple):
        return tuple(_picked(part, rows) for part in finals)
    return _together([finals[row] for row in rows])


def _together(observations: list[Any]) -> Any:
    first = observations[0]
    if isinstance(first, Mapping):
        return {name: _together([one[name] for one in observations]) for name in first}
    if isinstance(first, tuple):
        return tuple(_together(list(parts)) for parts in zip(*observations, strict=True))
    return numpy.stack(observations)


_ONLY = numpy.zeros(1, numpy.int64)
"""The row of an environment that has no others beside it."""
