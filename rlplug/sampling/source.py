"""Sources of experience: what all have, and environments of one vector, which step at once."""

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
from rlplug.envs.sync import SyncVector, check_columns
from rlplug.errors import EnvironmentFailedError
from rlplug.plugin import DEFAULT_MODULE, Acted, ActInput
from rlplug.sampling.checks import LOOKS, EnvironmentChecks, action_clipper, one_of
from rlplug.spaces import ACTION_MASK, find_mask

__all__ = ["Rows", "Source", "VectorSource"]


class Rows:
    """What the rows of one module see, and what they were answered in the last step.

    A row is an environment or, of several agents, an agent of an environment.
    """

    def __init__(self, num: int, stored: int = 0) -> None:
        self.num = num
        self.stored = stored or num
        """Rows of what is stored: a team has one in each environment."""
        self.turns: Any = None
        """Rows to act next; None: all."""
        self.others: list[tuple[Callable[[ActInput], Acted], Any]] = []
        """Other policies that act, for rows which are not learned from."""
        self.seen: Any = None
        """Observations to act on, not normalised."""
        self.is_live = False
        """Whether steps write into the arrays that are seen."""
        self.mask: Any = None
        self.rewards: Any = None
        self.terminated: Any = None
        self.truncated: Any = None
        self.stepped: Any = None
        """False where an environment only reset; None: all stepped."""
        self.ends: Any = None
        """Of tensors, the observations after the step where episodes ended."""
        self.answered: Any = None
        """Rows whose last action is answered; None: all."""
        self.restarted: Any = None
        """Rows whose recurrent state begins anew; None: none."""
        self.finals: list[tuple[Any, dict[str, Any]]] = []
        """Rows whose episode ended, and their last observations and masks."""
        self.infos: Mapping[str, Any] = {}

    def stored_of(self, which: Any, columns: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The stored rows of those that acted, and their columns."""
        return which, columns

    @property
    def current(self) -> dict[str, Any]:
        """The observations that are stored, and their mask."""
        if self.mask is None:
            return {"observations": self.seen}
        return {"observations": self.seen, ACTION_MASK: self.mask}


class Source:
    """Environments that are stepped: of one vector, of workers, games, or tensors.

    `save(beside)` gives the environments and what belongs to their step, or why they cannot be
    saved; `restore(pickled)` continues their episodes and returns what was saved beside them.
    """

    in_step = True
    """Whether all rows are answered together."""
    step_into: Any = None
    """Writes the next step into arrays of the caller, where environments can."""
    is_watched = True
    """Whether steps that take long are told: workers have a limit of their own."""

    def __init__(self, environments: Environments, during: str = "") -> None:
        num = environments.num_envs
        self.own = Rows(num)
        self.rows: Mapping[str, Any] = {DEFAULT_MODULE: self.own}
        """Those of each module."""
        self.checks = EnvironmentChecks(
            environments.name, num, environments.action_space, during=during
        )
        self.timestep = 0
        """Steps of the run before those that are taken, for messages."""
        self.doing = ""
        """`step` or `reset` while environments do that."""
        self.step_seconds = 0.0
        """Seconds that the environments took for their steps."""
        self.clip = action_clipper(environments.action_space, environments.device)
        self.actions: Any = None
        """Those of the next step."""
        self.environments = environments

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""

    def ready(self) -> None:
        """Look whose turn it is; unless all rows always act."""

    def send(self, module_id: str, which: Any, actions: Any) -> None:
        """Take the actions of these rows of a module, or of all."""
        self.actions = actions

    def recv(self, max_wait: float | None = None) -> None:
        """Wait for the answers of a step, at most so many seconds where not all are waited for."""

    def checks_of(self, module_id: str) -> EnvironmentChecks:
        """The checks of what is stored of a module."""
        return self.checks

    def failed(self, error: BaseException) -> EnvironmentFailedError:
        """The error for what an environment raised while it did what it does."""
        index, method = self.fault()
        which = "" if index is None else one_of(index, self.environments.num_envs)
        return self.checks.failed(which, method, self.timestep, error)

    def fault(self) -> tuple[int | None, str]:
        """The environment that raised, if it is known, and in what."""
        index, method = getattr(self.environments.vector, "failed", None) or (None, self.doing)
        return index, method

    def take_metrics(self) -> dict[str, float]:
        """Metrics since the last call."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """What the next report depends on."""
        return {}

    def set_state(self, saved: Mapping[str, Any]) -> str:
        """Restore a state; returns why environments cannot be, or nothing."""
        return ""


class VectorSource(Source):
    """Steps a vector environment in this process.

    It keeps final observations with `keep_finals`, and tells which recurrent states begin anew
    `with_memory`.
    """

    def __init__(
        self, environments: Environments, keep_finals: bool, with_memory: bool, during: str
    ) -> None:
        super().__init__(environments, during)
        vector = environments.vector
        self.step: Callable[[Any], Any] = vector.step
        # A subclass of SyncVector may override what a step returns, and may return anything.
        known = vector if type(vector) is SyncVector else None
        if known is not None:
            self.step_into = known.step_into
        self._vector, self._mode = vector, environments.autoreset
        self._keep_finals = keep_finals
        self.handles_ends = keep_finals or with_memory or self._mode != AutoresetMode.SAME_STEP
        self._space = vector.observation_space
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
            check_columns(self._space, rows.num, observations, rewards, terminated, truncated)
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
            mask = find_mask(observations, infos)
            observations, infos = self._vector.reset(options={"reset_mask": ended})
            anew = find_mask(observations, infos)
            if mask is not None and anew is not None:
                # Only those that were reset tell theirs.
                infos = {ACTION_MASK: numpy.where(ended[:, None], anew, mask)}
            return observations, infos
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
