"""Environments of one vector as a source: all step at once, in each of Gymnasium's resets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import numpy
from gymnasium.vector import AutoresetMode

from rlplug.batch.nested import builtin_dtype, copied, to_arrays, tree_map
from rlplug.envs import Environments
from rlplug.envs.saving import EnvironmentSaver, SavedEnvironments, restore_environments
from rlplug.envs.sync import SyncVector, check_ends
from rlplug.errors import EnvironmentFailedError
from rlplug.sampling.checks import LOOKS
from rlplug.sampling.source import Source
from rlplug.spaces import ACTION_MASK, find_mask, shape_mismatch

__all__ = ["VectorSource"]


class VectorSource(Source):
    """Steps a vector environment in this process.

    It keeps final observations with `keep_finals`, and tells which recurrent states begin anew
    `with_memory`.
    """

    def __init__(
        self,
        environments: Environments,
        *,
        keep_finals: bool,
        with_memory: bool,
        during: str = "",
    ) -> None:
        super().__init__(environments, during)
        vector = environments.vector
        self.step: Callable[[Any], Any] = vector.step
        # A subclass of SyncVector may override what a step returns, and may return anything.
        known = vector if type(vector) is SyncVector else None
        if known is not None and known.has_array_observations:
            self.step_into = known.step_into
        self._vector, self._mode = vector, environments.autoreset
        self._keep_finals = keep_finals
        self.handles_ends = keep_finals or with_memory or self._mode != AutoresetMode.SAME_STEP
        self._space = None if known else vector.observation_space
        self._looks = 0 if known else LOOKS
        self._saver = EnvironmentSaver(environments.another)
        self._full_mask: Any = None
        """Allows everything, for steps without a mask after steps with one."""
        self._resetting: Any = None
        """Which environments only reset in their next step; None in modes where none does."""

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        self.timestep, self.doing = 0, "reset"
        observations, infos = self.environments.reset(seed)
        self.doing = ""
        if self._mode == AutoresetMode.NEXT_STEP:
            self._resetting = numpy.zeros(self.own.num, bool)
        self.checks.check("an observation", observations, 0)
        self.observe(observations, infos, 0)

    def recv(self, max_wait: float | None = None) -> None:
        """Step all environments."""
        rows = self.own
        self.doing, began = "step", perf_counter()
        actions = self.clip(to_arrays(self.actions))
        observations, rewards, terminated, truncated, infos = self.step(actions)
        self.step_seconds += perf_counter() - began
        if self._looks:
            self._looks -= 1
            self._check_format(observations, rewards, terminated, truncated)
        rows.rewards, rows.terminated, rows.truncated = rewards, terminated, truncated
        rows.infos = infos
        if self.handles_ends:
            observations, infos = self.handle_ends(observations, infos)
        self.doing = ""
        # Most environments have no masks: asking here is faster than a call.
        if rows.mask is None and type(observations) is not dict and ACTION_MASK not in infos:
            rows.seen = observations
        else:
            self.observe(observations, infos, self.timestep + rows.num)

    def handle_ends(
        self, observations: Any, infos: Mapping[str, Any]
    ) -> tuple[Any, Mapping[str, Any]]:
        """Handle the ends of one step; returns the observations and infos to act on next."""
        rows = self.own
        rows.finals, rows.restarted = [], None
        ended = rows.terminated | rows.truncated
        if self._resetting is not None:
            rows.stepped = ~self._resetting
            if self._resetting.any():
                rows.restarted = numpy.flatnonzero(self._resetting)
            self._resetting = ended & rows.stepped
            return observations, infos
        # count_nonzero is four times as fast as any.
        if not numpy.count_nonzero(ended):
            return observations, infos
        rows.restarted = which = _FIRST_ROW if rows.num == 1 else ended.nonzero()[0]
        if self._mode == AutoresetMode.DISABLED:
            if self._keep_finals:
                last = tree_map(lambda leaf: leaf[which], observations)
                self._keep(which, last, infos, infos)
            reset: tuple[Any, Mapping[str, Any]]
            reset = self._vector.reset(options={"reset_mask": ended})
            return reset
        if self._keep_finals:
            known = infos.get("_final_obs")
            if known is None or numpy.count_nonzero(known.take(which)) < len(which):
                which = self._with_finals(which, known)
            if len(which):
                last = tree_map(partial(_take, rows=which), infos["final_obs"])
                self._keep(which, last, infos, infos.get("final_info", {}))
        return observations, infos

    def observe(self, observations: Any, infos: Mapping[str, Any], timestep: int) -> None:
        """Make what the environments returned what is acted on next."""
        rows, mask = self.own, self._full_mask
        known = find_mask(observations, infos)
        if known is not None:
            mask = self.checks.check_mask(known, self._resetting, timestep)
            if self._full_mask is None:
                self._full_mask = copied(mask)
                self._full_mask[...] = 1
        rows.seen, rows.mask = observations, mask

    def save(self, beside: Any) -> SavedEnvironments:
        """The environments and what belongs to their step, or why they cannot be saved."""
        rows = self.own
        state = rows.seen, rows.mask, self._full_mask, self._resetting
        return self._saver.save(self._vector, (state, beside))

    def restore(self, pickled: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        state, beside = restore_environments(self._vector, pickled)
        seen, self.own.mask, self._full_mask, self._resetting = state
        self.own.seen = tree_map(_as_made_here, seen)
        return beside

    def _check_format(
        self, observations: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> None:
        """Refuse shapes and types that NumPy would fit into buffers without an error."""
        num = self.own.num
        columns = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        for name, column in columns.items():
            if numpy.shape(column) != (num,):
                shape = numpy.shape(column)
                raise ValueError(f"it gave {name} of shape {shape} for {num} environments")
        mismatch = shape_mismatch(self._space, observations)  # type: ignore[arg-type] # with looks
        if mismatch:
            raise ValueError(f"it gave observations {mismatch}")
        check_ends(terminated, truncated)

    def _with_finals(self, which: Any, known: Any) -> Any:
        """The rows with a final observation, which terminated episodes may lack."""
        if known is None:
            known = numpy.zeros(self.own.num, dtype=bool)
        if (self.own.truncated & ~known).any():
            raise EnvironmentFailedError(
                f"environment {self.environments.name!r} truncates episodes without 'final_obs' "
                "in its infos: there is no observation to bootstrap from.",
                "try: --set sampling.vectorization=sync",
            )
        return which[known[which]]

    def _keep(
        self, which: Any, observations: Any, infos: Mapping[str, Any], last: Mapping[str, Any]
    ) -> None:
        final = {"observations": observations}
        if isinstance(observations, dict) and ACTION_MASK in observations:
            final[ACTION_MASK] = observations[ACTION_MASK]
        elif ACTION_MASK in infos:
            # A final state without a mask may be bootstrapped from the value of any action.
            every = numpy.ones_like(numpy.stack(list(infos[ACTION_MASK])))
            masks = last.get(ACTION_MASK, every)
            final[ACTION_MASK] = numpy.stack([masks[row] for row in which])
        self.own.finals.append((which, final))


def _take(leaf: Any, rows: Any) -> Any:
    """These rows of an array of `final_obs`, which may hold objects."""
    if leaf.dtype != object:
        return leaf.take(rows, axis=0)
    return tree_map(lambda *parts: numpy.stack(parts), *leaf[rows])


def _as_made_here(leaf: Any) -> Any:
    return leaf.view(builtin_dtype(leaf.dtype)) if isinstance(leaf, numpy.ndarray) else leaf


_FIRST_ROW = numpy.zeros(1, numpy.int64)
