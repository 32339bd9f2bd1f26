"""What happens at the end of an episode, in each of Gymnasium's autoreset modes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import numpy
from gymnasium.vector import AutoresetMode

from rlplug.batch.nested import tree_map
from rlplug.envs import Environments
from rlplug.errors import EnvironmentFailedError
from rlplug.feeds import FinalObservations
from rlplug.plugin import ActInput, Module
from rlplug.sampling.buffers import restarted

__all__ = ["Autoreset"]


class Autoreset:
    """Keeps final observations, marks steps that only reset, and resets recurrent state."""

    def __init__(self, environments: Environments, module: Module, *, keep_finals: bool) -> None:
        self.initial_state: Any = module.initial_state(1)
        """Recurrent state of one new episode; None for modules without one."""
        self._vector = environments.vector
        self._name = environments.name
        self._num_envs = environments.num_envs
        self._mode = environments.autoreset
        self._keep_finals = keep_finals
        self.active = (
            keep_finals
            or self.initial_state is not None
            or environments.autoreset != AutoresetMode.SAME_STEP
        )
        """Whether ends of episodes need any handling."""
        self.reset()

    def reset(self, resetting: Any = None) -> None:
        """Start over after all environments were reset, or with these only to reset next."""
        none = numpy.zeros(self._num_envs, dtype=bool)
        self._ended = none if resetting is None else resetting
        self._indices: list[Any] = []
        self._finals: list[dict[str, Any]] = []

    @property
    def resetting(self) -> Any:
        """Which environments only reset in their next step; None in modes where none does."""
        return self._ended if self._mode == AutoresetMode.NEXT_STEP else None

    def handle(
        self,
        time: int,
        outcome: dict[str, Any],
        observations: Any,
        infos: Mapping[str, Any],
        act: ActInput,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Handle the ends of one step; returns the observations and infos to act on next.

        Adds `stepped` to `outcome` where environments may only have reset.
        """
        if self._mode == AutoresetMode.NEXT_STEP:
            only_reset = self._ended
            outcome["stepped"] = stepped = ~only_reset
            self._ended = (outcome["terminated"] | outcome["truncated"]) & stepped
            if act.state is not None and only_reset.any():
                self._restart(act, numpy.flatnonzero(only_reset))
            return observations, infos
        ended = outcome["terminated"] | outcome["truncated"]
        # count_nonzero is four times as fast as any.
        if not numpy.count_nonzero(ended):
            return observations, infos
        rows = _FIRST_ROW if self._num_envs == 1 else ended.nonzero()[0]
        if act.state is not None:
            self._restart(act, rows)
        if self._mode == AutoresetMode.DISABLED:
            if self._keep_finals:
                self._keep(time, rows, tree_map(lambda leaf: leaf[rows], observations), infos)
            reset: tuple[Any, Mapping[str, Any]]
            reset = self._vector.reset(options={"reset_mask": ended})
            return reset
        if self._keep_finals:
            known = infos.get("_final_obs")
            if known is None or numpy.count_nonzero(known.take(rows)) < len(rows):
                rows = self._with_finals(rows, known, outcome["truncated"])
            if len(rows):
                finals = tree_map(partial(_take, rows=rows), infos["final_obs"])
                self._keep(time, rows, finals, infos)
        return observations, infos

    def take_finals(self) -> FinalObservations | None:
        """Returns the final observations since the last call."""
        if not self._indices:
            return None
        indices, columns = self._indices[0], self._finals[0]
        if len(self._indices) > 1:
            indices = numpy.concatenate(self._indices)
            shared = set.intersection(*map(set, self._finals))
            columns = {
                name: tree_map(_concatenate, *map(itemgetter(name), self._finals))
                for name in shared
            }
        self._indices, self._finals = [], []
        return FinalObservations(indices, columns)

    def _with_finals(self, rows: Any, known: Any, truncated: Any) -> Any:
        """The rows with a final observation, which terminated episodes may lack."""
        if known is None:
            known = numpy.zeros(self._num_envs, dtype=bool)
        if (truncated & ~known).any():
            raise EnvironmentFailedError(
                f"environment {self._name!r} truncates episodes without 'final_obs' in its infos: "
                "there is no observation to bootstrap from.",
                "try: --set sampling.vectorization=sync",
            )
        return rows[known[rows]]

    def _keep(self, time: int, rows: Any, observations: Any, infos: Mapping[str, Any]) -> None:
        self._indices.append(time * self._num_envs + rows)
        final = {"observations": observations}
        if isinstance(observations, dict) and "action_mask" in observations:
            final["action_mask"] = observations["action_mask"]
        elif "action_mask" in infos:
            last = infos.get("final_info", infos if self._mode == AutoresetMode.DISABLED else {})
            # A final state without a mask may be bootstrapped from the value of any action.
            every = numpy.ones_like(numpy.stack(list(infos["action_mask"])))
            masks = last.get("action_mask", every)
            final["action_mask"] = numpy.stack([masks[row] for row in rows])
        self._finals.append(final)

    def _restart(self, act: ActInput, rows: Any) -> None:
        act.state = restarted(act.state, rows, self.initial_state)


def _take(leaf: Any, rows: Any) -> Any:
    """These rows of an array of `final_obs`, which may hold objects."""
    if leaf.dtype != object:
        return leaf.take(rows, axis=0)
    return tree_map(lambda *parts: numpy.stack(parts), *leaf[rows])


def _concatenate(*parts: Any) -> Any:
    return numpy.concatenate(parts)


_FIRST_ROW = numpy.zeros(1, numpy.int64)
