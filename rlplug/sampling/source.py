"""Sources of experience: what all have, and environments of one vector, which step at once."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import Any

import numpy
from gymnasium.vector import AutoresetMode

from rlplug.batch.nested import builtin_dtype, to_arrays, tree_map
from rlplug.envs import Environments
from rlplug.envs.saving import EnvironmentSaver, SavedEnvironments, restore_environments
from rlplug.envs.sync import LOOKS, SyncVector, check_columns
from rlplug.errors import FAILURES, EnvironmentFailedError, RlplugError
from rlplug.feeds.feed import rows_of
from rlplug.plugin import DEFAULT_MODULE, Acted, ActInput
from rlplug.sampling.checks import EnvironmentChecks, action_clipper
from rlplug.spaces import ACTION_MASK, find_mask

__all__ = ["NOBODY", "Rows", "Source", "VectorSource", "watch"]

_LOG = logging.getLogger("rlplug")

NOBODY = numpy.zeros(0, numpy.int64)


class Rows:
    """What the rows of one module see, and what they were answered in the last step.

    A row is an environment or, of several agents, an agent of an environment.
    """

    turns: Any = None
    """Rows to act next; None: all."""
    others: list[tuple[Callable[[ActInput], Acted], Any]] = []
    """Other policies that act, for rows which are not learned from."""
    seen: Any = None
    """Observations to act on, not normalised."""
    mask: Any = None
    outcome: dict[str, Any] = {}
    """Columns of what was answered: `rewards`, `terminated` and `truncated`, unless steps are
    written to where they are stored; `stepped`, False where an environment only reset; of tensors
    `ends`, the observations after the step where episodes ended."""
    restarted: Any = None
    """Rows whose recurrent state begins anew; None: none."""
    infos: Mapping[str, Any] = {}
    more: Mapping[str, Any] = {}
    """More columns of those that act next."""
    stored_of: Any = None
    """Of teams: gives the stored rows of those that acted, and their columns."""

    def __init__(self, num: int, stored: int = 0, *, is_live: bool = False) -> None:
        self.num = num
        self.stored = stored or num
        """Rows of what is stored: a team has one in each environment."""
        self.is_live = is_live
        """Whether steps write into the arrays that are seen."""
        self.answered: Any = NOBODY
        """Rows whose last action is answered, until that is stored; None: all."""
        self.finals: list[tuple[Any, dict[str, Any]]] = []
        """Rows whose episode ended, and their last observations and masks."""
        self.views: list[Any] = []
        """Where the outcome of each step is written, if environments do that themselves."""

    def keep_finals(
        self, which: Any, observations: Any, mask: Any, infos: Mapping[str, Any]
    ) -> None:
        """Keep the last observations of these rows, with their masks if there are any.

        A final state without a mask may be bootstrapped from the value of any action.
        """
        final = {"observations": observations}
        if isinstance(observations, dict) and ACTION_MASK in observations:
            final[ACTION_MASK] = observations[ACTION_MASK]
        elif mask is not None:
            known = find_mask(None, infos)
            final[ACTION_MASK] = numpy.ones_like(mask[which]) if known is None else known[which]
        self.finals.append((which, final))

    @property
    def current(self) -> dict[str, Any]:
        """The observations that are stored, and their mask."""
        if self.mask is None:
            return {"observations": self.seen}
        return {"observations": self.seen, ACTION_MASK: self.mask}


class Source:
    """Environments that are stepped: of one vector, of workers, games, or tensors."""

    in_step = True
    """Whether all rows are answered together."""
    spare_steps = 0
    """Steps for which rows may act in a collection beyond its own: they are of the next one."""
    version = 0
    """Updates of the weights that act."""

    def __init__(self, environments: Environments, during: str = "") -> None:
        self.num_envs = num = environments.num_envs
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

    def turns(self, timestep: int, steps: int) -> Iterator[int]:
        """Step after each turn to act; yields the steps of the run so far."""
        for number in range(steps):
            self.timestep = timestep + number * self.num_envs
            self.ready()
            yield self.timestep
            self.recv()

    def ready(self) -> None:
        """Look whose turn it is; unless all rows always act."""

    def send(self, module_id: str, which: Any, actions: Any) -> None:
        """Take the actions of these rows of a module, or of all."""
        self.actions = actions

    def recv(self) -> None:
        """Wait for the answers of a step."""

    def checks_of(self, module_id: str) -> EnvironmentChecks:
        """The checks of what is stored of a module."""
        return self.checks

    @contextmanager
    def asking(self, method: str) -> Iterator[None]:
        """The environments do this meanwhile; what they raise names them."""
        self.doing, began = method, perf_counter()
        try:
            yield
        except RlplugError:
            raise
        except FAILURES as error:
            raise self.failed(error) from error
        finally:
            self.doing = ""
        self.step_seconds += (perf_counter() - began) * (method == "step")

    def failed(self, error: BaseException) -> EnvironmentFailedError:
        """The error for what an environment raised while it did what it does."""
        failed = getattr(self.environments.vector, "failed", None)
        index, method = failed or (None, self.doing)
        said = f": {type(error).__name__}: {error}"
        return self.checks.fault(f"failed in {method}", self.timestep, index, said)

    def take_metrics(self) -> dict[str, float]:
        """Metrics since the last call."""
        return {}

    def save(self, beside: Any) -> SavedEnvironments:
        """The environments and what belongs to their step, or why they cannot be saved."""
        raise NotImplementedError

    def restore(self, pickled: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        raise NotImplementedError

    def get_state(self) -> dict[str, Any]:
        """What the next report depends on."""
        return {}

    def set_state(self, saved: Mapping[str, Any]) -> str:
        """Restore a state; returns why environments cannot be, or nothing."""
        return ""


class VectorSource(Source):
    """Steps a vector environment in this process.

    It keeps final observations with `keep_finals`, and tells which recurrent states begin anew
    `with_memory`. Several steps in turn are written into `buffer`.
    """

    buffer: Any
    """The buffer of the module's actor."""

    def __init__(
        self, environments: Environments, keep_finals: bool, with_memory: bool, during: str
    ) -> None:
        super().__init__(environments, during)
        vector = environments.vector
        self.step: Callable[[Any], Any] = vector.step
        # A subclass of SyncVector may override what a step returns, and may return anything.
        self._is_ours = type(vector) is SyncVector
        self._vector, self._mode = vector, environments.autoreset
        self._keep_finals = keep_finals
        self._handles_ends = keep_finals or with_memory or self._mode != AutoresetMode.SAME_STEP
        self._looks = 0 if self._is_ours else LOOKS
        self._saver = EnvironmentSaver(environments.another)
        self._as_chosen = False
        """Whether the actions of modules are those that environments take."""
        self._full_mask: Any = None
        """Allows everything, for steps without a mask after steps with one."""
        self._resetting: Any = None
        """Which environments only reset in their next step; None in modes where none does."""

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        self.timestep = 0
        with self.asking("reset"):
            observations, infos = self.environments.reset(seed)
        if self._mode == AutoresetMode.NEXT_STEP:
            self._resetting = numpy.zeros(self.own.num, bool)
        self.checks.check("an observation", observations, 0)
        self._observe(observations, infos, 0)

    def turns(self, timestep: int, steps: int) -> Iterator[int]:
        """Step after each turn to act, into the views; yields the steps of the run so far."""
        rows = self.own
        if not rows.views:
            grid = self.buffer.allocate("observations", rows.seen)
            self._first = tree_map(itemgetter(0), grid)
            seen = [tree_map(itemgetter(time), grid) for time in range(1, steps)]
            # After the last step, what is to be acted on next.
            seen.append(tree_map(numpy.empty_like, rows.seen))
            ends = numpy.zeros(rows.num, bool)
            examples = {"rewards": numpy.zeros(rows.num), "terminated": ends, "truncated": ends}
            grids = [self.buffer.allocate(*pair) for pair in examples.items()]
            rows.views = list(zip(seen, *grids, strict=True))
        tree_map(numpy.copyto, self._first, rows.seen)
        rows.seen = self._first
        for name in ("terminated", "truncated"):
            self.buffer.columns[name].fill(False)
        for number in range(steps):
            self.timestep = timestep + number * rows.num
            yield self.timestep
            self.recv(number)

    def recv(self, number: int | None = None) -> None:
        """Step all environments; with a number, into the views of that step."""
        rows, actions = self.own, self.actions
        if not self._as_chosen:
            actions = self.clip(to_arrays(actions))
            self._as_chosen = actions is self.actions
        self.doing, began = "step", perf_counter()
        try:
            if number is not None and self._is_ours:
                outcome = rows.views[number]
                infos = self._vector.step_into(actions, *outcome)
            else:
                *outcome, infos = self.step(actions)
                if self._looks:
                    self._looks -= 1
                    check_columns(self._vector.observation_space, rows.num, *outcome)
                if number is not None:
                    tree_map(_put, rows.views[number], tuple(outcome))
                    outcome = rows.views[number]
        except RlplugError:
            raise
        except FAILURES as error:
            raise self.failed(error) from error
        self.doing = ""
        self.step_seconds += perf_counter() - began
        rows.answered, rows.infos = None, infos
        observations, rewards, terminated, truncated = outcome
        if number is None:
            rows.outcome = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        if self._handles_ends and (not self._is_ours or "final_obs" in infos):
            seen, infos = self._handle_ends(observations, terminated, truncated, infos)
            if seen is not observations and number is not None:
                tree_map(_put, observations, seen)
            else:
                observations = seen
        # Most environments have no masks: asking here is faster than a call.
        if rows.mask is None and type(observations) is not dict and ACTION_MASK not in infos:
            rows.seen = observations
        else:
            self._observe(observations, infos, self.timestep + rows.num)

    def _handle_ends(
        self, observations: Any, terminated: Any, truncated: Any, infos: Mapping[str, Any]
    ) -> tuple[Any, Mapping[str, Any]]:
        """Handle the ends of one step; returns the observations and infos to act on next."""
        rows, ended = self.own, terminated | truncated
        if self._resetting is not None:
            stepped, rows.restarted = ~self._resetting, numpy.flatnonzero(self._resetting)
            rows.outcome = {**rows.outcome, "stepped": stepped}
            self._resetting = ended & stepped
            return observations, infos
        # count_nonzero is four times as fast as any.
        if not numpy.count_nonzero(ended):
            return observations, infos
        rows.restarted = which = numpy.flatnonzero(ended)
        if self._mode == AutoresetMode.DISABLED:
            if self._keep_finals:
                rows.keep_finals(which, rows_of(observations, which), rows.mask, infos)
            mask = find_mask(observations, infos)
            with self.asking("reset"):
                observations, infos = self._vector.reset(options={"reset_mask": ended})
            anew = find_mask(observations, infos)
            if mask is not None and anew is not None:
                # Only those that were reset tell theirs.
                infos = {ACTION_MASK: numpy.where(ended[:, None], anew, mask)}
        elif self._keep_finals:
            known = infos.get("_final_obs", numpy.zeros(rows.num, bool))
            if (truncated & ~known).any():
                raise EnvironmentFailedError(
                    f"environment {self.environments.name!r} truncates episodes without "
                    "'final_obs' in its infos: there is no observation to bootstrap from.",
                    "try: --set sampling.vectorization=sync",
                )
            # Terminated episodes may lack theirs.
            which = which[known[which]]
            if len(which):
                last = tree_map(partial(_take, rows=which), infos["final_obs"])
                rows.keep_finals(which, last, rows.mask, infos.get("final_info", {}))
        return observations, infos

    def _observe(self, observations: Any, infos: Mapping[str, Any], timestep: int) -> None:
        """Make what the environments returned what is acted on next."""
        rows, mask = self.own, self._full_mask
        known = find_mask(observations, infos)
        if known is not None:
            mask = self.checks.check_mask(known, self._resetting, timestep)
            if self._full_mask is None:
                self._full_mask = numpy.ones_like(mask)
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


def _put(array: Any, column: Any) -> None:
    array[...] = column


def _take(leaf: Any, rows: Any) -> Any:
    """These rows of an array of `final_obs`, which may hold objects."""
    if leaf.dtype != object:
        return leaf.take(rows, axis=0)
    return tree_map(lambda *parts: numpy.stack(parts), *leaf[rows])


def _as_made_here(leaf: Any) -> Any:
    return leaf.view(builtin_dtype(leaf.dtype)) if isinstance(leaf, numpy.ndarray) else leaf


def watch(source: Source, timeout: float) -> None:
    """Warn once of an environment that takes longer for one step or reset, while there is a source.

    An environment that holds the interpreter lock while it hangs (in C code) delays the warning.
    """
    arguments = weakref.ref(source), timeout
    threading.Thread(target=_watch, args=arguments, name="rlplug-watchdog", daemon=True).start()


def _watch(watched: weakref.ref[Source], timeout: float) -> None:
    pause = min(max(timeout / 4, _SHORTEST_PAUSE), _LONGEST_PAUSE)
    last, seconds = ("", 0), 0.0
    while seconds < timeout:
        # Pauses are added up: a process that was suspended did not wait for its environment.
        time.sleep(pause)
        source = watched()
        if source is None:
            return
        doing = source.doing, source.timestep
        seconds = seconds + pause if source.doing and doing == last else 0.0
        last, checks = doing, source.checks
        del source
    _LOG.warning(
        "rlplug: environment %r has been in %s for %s s at step %s%s (sampling.step_timeout); "
        "the run waits for it.",
        checks.name,
        last[0],
        f"{seconds:,.4g}",
        f"{last[1]:,}",
        checks.during,
    )


_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two looks of the watchdog."""
