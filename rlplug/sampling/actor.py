"""Acts with one module for its rows, and stores what they see and do in memory that is reused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch.nested import builtin_dtype, copied, leaves, to_arrays, tree_map
from rlplug.errors import PluginError
from rlplug.feeds import Experience, FinalObservations, OpenFeed
from rlplug.feeds.feed import rows_of
from rlplug.plugin import Acted, ActInput, Module
from rlplug.sampling.episode_stats import EpisodeStats
from rlplug.sampling.source import NOBODY, Rows, Source
from rlplug.spaces import ACTION_MASK

__all__ = ["Actor", "Buffer"]


class Buffer:
    """Columns of `steps × num` rows, ordered by time or environment by environment.

    Their names, shapes and dtypes are those of the first step written. They are arrays or, with a
    `device`, tensors on it.
    """

    def __init__(
        self, steps: int, num: int, *, by_environment: bool, device: torch.device | None = None
    ) -> None:
        self.columns: dict[str, Any] = {}
        self.grids: dict[str, Any] = {}
        """The same memory with two leading dimensions, time and environment."""
        self._shape = (num, steps) if by_environment else (steps, num)
        self._by_environment, self._device = by_environment, device

    def write(self, where: Any, columns: Mapping[str, Any]) -> None:
        """Write the step of a time, or one row for each of these times and environments."""
        for name, column in columns.items():
            grid = self.grids.get(name)
            if grid is None:
                grid = self.allocate(name, column, where)
            if type(grid) is numpy.ndarray:
                grid[where] = column
            elif self._device is None:
                put_rows(grid, where, column)
            else:
                tree_map(lambda leaf, part: leaf[where].copy_(part), grid, column)

    def pad(self, counts: Any, steps: int, current: Mapping[str, Any]) -> None:
        """Write what is acted on next behind the last row of each environment, up to `steps`."""
        times, envs = numpy.nonzero(numpy.arange(steps)[:, None] >= counts)
        nothing = dict.fromkeys(("rewards", "terminated", "truncated"), 0)
        seen = {name: column for name, column in current.items() if name in self.grids}
        self.write((times, envs), {**rows_of(seen, envs), **nothing})

    def allocate(self, name: str, example: Any, where: Any = 0) -> Any:
        """Add a column like this example of one step; returns its grid."""
        time = where if isinstance(where, int) else int(where[0].min())
        # Environments may begin to return masks later: everything was allowed before.
        if time and name != ACTION_MASK:
            raise PluginError(
                f"the module returned {name!r} only from step {time + 1} of a collection on.",
                "return the same extras in every step",
            )
        fill = 1 if name == ACTION_MASK else 0
        example = to_arrays(example) if self._device is None else example
        self.columns[name] = tree_map(partial(self._filled, fill), example)
        grid = self.grids[name] = tree_map(self._by_time, self.columns[name])
        return grid

    def _filled(self, fill: int, leaf: Any) -> Any:
        shape = (self._shape[0] * self._shape[1], *leaf.shape[1:])
        if self._device is None:
            return numpy.full(shape, fill, builtin_dtype(leaf.dtype))
        return torch.full(shape, fill, dtype=leaf.dtype, device=self._device)

    def _by_time(self, leaf: Any) -> Any:
        grid = leaf.reshape(*self._shape, *leaf.shape[1:])
        return grid.swapaxes(0, 1) if self._by_environment else grid


class Actor:
    """One module of a collection, and its rows, each of which has as many steps as were answered.

    An action that is not answered when a collection ends is the first row of the next one. Without
    a `feed`, the module acts and collects nothing.
    """

    def __init__(
        self,
        module_id: str,
        module: Module,
        feed: OpenFeed | None,
        source: Source,
        *,
        steps: int,
        random: Any,
    ) -> None:
        environments = source.environments
        self._device = device = environments.device
        self.normalization = normalization = environments.modules[module_id].normalization
        self.rows: Rows = source.rows[module_id]
        self.feed, rows = feed, self.rows
        self.act = ActInput(None, random=random, in_torch=device is not None)
        """Input of the module's next call."""
        self.choose: Callable[[ActInput], Acted] = module.forward_exploration
        """How the module acts."""
        self.at: int | None = None
        """The step that the module is given, instead of those of the collection."""
        self.normalize: Callable[[Any], Any] | None = None
        if normalization is not None:
            self.normalize = normalization.observations
        self.needs_log_prob = False
        """Whether actions without log-probabilities are refused: other weights may learn."""
        self.stats = EpisodeStats(rows.stored)
        self.after_reset: Any = True
        self.state: Any = None
        """Recurrent state of all rows."""
        self._module, self._checks = module, source.checks_of(module_id)
        self.initial_state = self._begun(1)
        """Recurrent state of one new episode; None for modules without one."""
        self.last: Experience | None = None
        """The last collection, if it has steps."""
        self._is_checked = False
        self._steps = steps
        self._time = 0
        """Steps of all rows in this collection, as long as these are equally many."""
        self._times: Any = None
        """Steps of each row, once they are not."""
        self._pending = numpy.zeros(rows.stored, bool)
        """Of rows that are not answered in step: those whose action is not answered. It is in the
        buffer behind their last step."""
        self._in_step = source.in_step
        self._states: list[Any] = []
        self._finals: list[tuple[Any, Mapping[str, Any]]] = []
        if feed is not None:
            by_environment = feed.by_environment
            self.buffer = Buffer(steps, rows.stored, by_environment=by_environment, device=device)
            self._interval = feed.state_interval or steps

    def start(self) -> None:
        """All environments were reset."""
        if self.normalization is not None:
            self.normalization.forget_episodes()
        self.stats.forget_episodes()
        self.after_reset = True
        self._pending[:] = False
        self.state = self._begun(self.rows.num)

    def begin(self) -> None:
        """Begin a collection, with the actions that were not answered in the last one."""
        if self._pending.any():
            pending = numpy.flatnonzero(self._pending)
            self.buffer.write((0 * pending, pending), self._rows_at(pending))
        self._time, self._times = 0, None
        self._finals, self._states = [], []

    # -- acting ----------------------------------------------------------------------------------

    def turn(
        self, which: Any, timestep: int, choose: Callable[[ActInput], Acted] | None = None
    ) -> Acted:
        """Act for these rows, or for all; with another policy, if it is given."""
        act, rows, state = self.act, self.rows, self.state
        seen, mask = rows.seen, rows.mask
        if which is not None:
            seen = rows_of(seen, which)
            mask = None if mask is None else mask[which]
            state = None if state is None else rows_of(state, which)
        act.observations = seen if self.normalize is None else self.normalize(seen)
        act.action_mask, act.state = mask, state
        act.timestep = timestep if self.at is None else self.at
        acted = (choose or self.choose)(act)
        if state is not None:
            if which is None:
                self.state = acted.state
            else:
                self.state = with_rows(self.state, which, acted.state)
        return acted

    def ask_for_log_prob(self) -> bool:
        """Have the module return log-probabilities; whether it returned them already, unasked.

        To find out, it acts for a copy of its input, the random generator included.
        """
        own, state = self.act, self.state
        self.act = copy.deepcopy(own)
        with torch.no_grad():
            unasked = "log_prob" in self.turn(None, 0).extras
        self.act, self.state = own, state
        own.wants_log_prob = True
        return unasked

    # -- collecting ------------------------------------------------------------------------------

    def collect(self, which: Any, timestep: int) -> Acted:
        """Act for these rows, or for all, and store what they see and do."""
        rows = self.rows
        if self.state is not None and self.feed is not None:
            self._keep_states(which)
        acted = self.turn(which, timestep)
        if self.feed is None:
            return acted
        columns = {"actions": acted.actions, **acted.extras, **rows.more}
        if not self._is_checked:
            self._check(columns)
        if rows.stored_of is not None:
            which, columns = rows.stored_of(which, columns)
        # Views of observations are in the buffer already.
        if not rows.views:
            columns |= rows.current if which is None else rows_of(rows.current, which)
        elif rows.mask is not None:
            columns[ACTION_MASK] = rows.mask
        self.buffer.write(self._where(which), columns)
        if not self._in_step:
            self._pending[slice(None) if which is None else which] = True
        return acted

    def store(self) -> None:
        """Store the answers of a step, and the ends of episodes."""
        rows, which = self.rows, self.rows.answered
        is_stored = self.feed is not None and (which is None or len(which) > 0)
        if is_stored and rows.outcome:
            if which is not None and self._times is None:
                self._times = numpy.full(rows.stored, self._time)
            where = self._where(which)
            outcome = rows.outcome if which is None else rows_of(rows.outcome, which)
            self.buffer.write(where, outcome)
        for ended, columns in rows.finals:
            times = self._time if self._times is None else self._times[ended]
            self._finals.append((times * rows.stored + ended, columns))
        if rows.restarted is not None:
            self.restart()
        if is_stored:
            if self._times is None:
                self._time += 1
            else:
                self._times[slice(None) if which is None else which] += 1
            if not self._in_step:
                self._pending[slice(None) if which is None else which] = False
            if rows.infos:
                self.stats.add_regret(rows.infos)
        rows.answered, rows.finals = NOBODY, []

    def restart(self) -> None:
        """Reset the recurrent state of rows whose episode ended."""
        ended, self.rows.restarted = self.rows.restarted, None
        if self.state is not None and ended is not None and len(ended):
            self.state = restarted(self.state, ended, self.initial_state)

    def experience(self, timestep: int) -> Experience:
        """The steps of the collection, valid until the next one; maybe none."""
        feed, times, num = self.feed, self._times, self.rows.stored
        assert feed is not None
        if times is None:
            steps = least = self._time
        else:
            steps, least = int(times.max()), int(times.min())
        columns, counts, current = dict(self.buffer.columns), None, self._current()
        stepped, ends = columns.pop("stepped", None), columns.pop("ends", None)
        if not steps:
            columns, stepped = {}, None
        elif least < self._steps:
            if feed.by_environment:
                steps = self._steps
            else:
                # The rows of later times are not used.
                columns = rows_of(columns, slice(steps * num))
            counts = numpy.full(num, self._time) if times is None else times
            self.buffer.pad(counts, steps, current)
            grid = numpy.arange(steps)[:, None] < counts
            stepped = (grid.T if feed.by_environment else grid).reshape(-1)
        if self._device is None:
            # Batches of single steps are not copied again.
            columns = tree_map(copied, columns) if steps == 1 else columns
        elif ends is None and feed.wants_next and stepped is None:
            # The observation before the end is the nearest to what is not given.
            ends = columns["observations"]
        experience = Experience(
            columns,
            steps=steps,
            num_envs=num,
            by_environment=feed.by_environment,
            following=current if feed.wants_next else {},
            finals=_joined(self._finals),
            ends=ends,
            stepped=stepped,
            counts=counts,
            after_reset=self.after_reset,
            states=self._states,
            initial_state=self.initial_state,
        )
        self.last = experience if steps else None
        if steps:
            self.after_reset = False
            if self._device is None:
                self._count(experience, timestep, current["observations"])
        return experience

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""
        normalization, last = self.normalization, self.last
        if normalization is None or self.feed is None:
            return
        if last is None:
            normalization.absorb_nothing()
        else:
            last.absorb_into(normalization)

    def _where(self, which: Any) -> Any:
        """Where the next steps of these rows, or of all, are in the buffer."""
        if which is None and self._times is None:
            return self._time
        which = numpy.arange(self.rows.stored) if which is None else which
        times = numpy.full(len(which), self._time) if self._times is None else self._times[which]
        return times, which

    def _current(self) -> dict[str, Any]:
        """What is to be acted on next, or was if that is not answered; not what is written next."""
        current: dict[str, Any] = self.rows.current
        if not self.rows.is_live:
            return current
        current = tree_map(copied, current)
        pending = numpy.flatnonzero(self._pending)
        if len(pending):
            acted = self._rows_at(pending)
            known = {name: column for name, column in current.items() if name in acted}
            put_rows(known, pending, {name: acted[name] for name in known})
        return current

    def _rows_at(self, rows: Any) -> dict[str, Any]:
        """What these rows see and do in their next step."""
        where = self._where(rows)
        return {name: rows_of(grid, where) for name, grid in self.buffer.grids.items()}

    def _keep_states(self, which: Any) -> None:
        """Copy the recurrent state of rows that are at the start of a fragment."""
        state = self.state
        where = self._where(which)
        if isinstance(where, int):
            if where % self._interval == 0:
                self._states.append(tree_map(copied, state))
            return
        times, which = where
        for number in numpy.unique(times[times % self._interval == 0] // self._interval).tolist():
            rows = which[times == number * self._interval]
            while len(self._states) <= number:
                self._states.append(tree_map(copied, to_arrays(state)))
            put_rows(self._states[number], rows, rows_of(state, rows))

    def _count(self, experience: Experience, timestep: int, following: Any) -> None:
        """Check the numbers of a collection, and add it to the statistics of episodes."""
        steps, stepped = experience.steps, experience.stepped
        rewards, terminated, truncated = (
            self.buffer.grids[name][:steps] for name in ("rewards", "terminated", "truncated")
        )
        real = None if stepped is None else experience.grid(stepped)
        self.stats.add_rollout(rewards, terminated, truncated, real)
        self._checks.check_experience(experience, timestep)
        after = timestep + steps * self.rows.stored
        self._checks.check("an observation", following, after)

    def _begun(self, num: int) -> Any:
        """The recurrent state of so many new episodes, on the device."""
        state = self._module.initial_state(num)
        if state is None or self._device is None:
            return state
        return tree_map(lambda leaf: torch.as_tensor(leaf, device=self._device), state)

    def _check(self, columns: Mapping[str, Any]) -> None:
        """Refuse what a module must not return, as its first answer shows."""
        self._is_checked = True
        if self.needs_log_prob and "log_prob" not in columns:
            raise PluginError(
                f"{type(self._module).__name__}.forward_exploration returned no log_prob, which "
                "is needed where the weights that act may be older than those that learn.",
                'try: Acted(…, extras={"log_prob": …}) if act.wants_log_prob',
            )
        for name, column in columns.items() if self._device is not None else ():
            for leaf in leaves(column):
                if not isinstance(leaf, Tensor) or leaf.device != self._device:
                    found = leaf.device if isinstance(leaf, Tensor) else type(leaf).__name__
                    raise PluginError(
                        f"the module says that it acts on tensors, but its {name} are of {found}, "
                        f"not tensors on {self._device}.",
                        "compute them in torch where act.in_torch is set",
                    )

    # -- state -----------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """What the next actions and the next report depend on, beside `get_episodes`."""
        act = self.act
        random = None if act.in_torch else act.random.bit_generator.state
        return {
            "random": random,
            "drawn": list(act.drawn),
            "episode_stats": self.stats.get_state(),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        if not self.act.in_torch:
            self.act.random.bit_generator.state = saved["random"]
            self.act.drawn[:] = saved["drawn"]
        self.stats.set_state(saved["episode_stats"])

    def get_episodes(self) -> dict[str, Any]:
        """What belongs to the episodes in progress; not a copy."""
        pending = numpy.flatnonzero(self._pending)
        return {
            "pending": (pending, self._rows_at(pending) if len(pending) else {}),
            "state": self.state,
            "after_reset": self.after_reset,
        }

    def set_episodes(self, saved: Mapping[str, Any]) -> None:
        """Go on with episodes in progress."""
        pending, columns = saved["pending"]
        if len(pending):
            self._pending[pending] = True
            self.buffer.write((0 * pending, pending), columns)
        self.state, self.after_reset = saved["state"], saved["after_reset"]


def _joined(finals: Sequence[tuple[Any, Mapping[str, Any]]]) -> FinalObservations | None:
    """Final observations as columns, in the order of their indices; those some lack are left out.

    Each part has `time * num + environment` of its rows.
    """
    if len(finals) < 2:
        return FinalObservations(*finals[0]) if finals else None
    indices = numpy.concatenate([own for own, _ in finals])
    order = indices.argsort(kind="stable")
    columns = {}
    for name in sorted(set.intersection(*(set(own) for _, own in finals))):
        parts = [own[name] for _, own in finals]
        columns[name] = tree_map(lambda *leaves: numpy.concatenate(leaves)[order], *parts)
    return FinalObservations(indices[order], columns)


def put_rows(arrays: Any, rows: Any, column: Any) -> None:
    """Write rows of nested arrays."""
    tree_map(lambda array, part: array.__setitem__(rows, part), arrays, to_arrays(column))


def with_rows(column: Any, rows: Any, part: Any) -> Any:
    """A copy of a column with other rows: the old one may be stored."""

    def replaced(leaf: Any, new: Any) -> Any:
        # What begins as tensors may go on as arrays, and the other way round.
        leaf = torch.as_tensor(leaf) if isinstance(new, Tensor) else to_arrays(leaf)
        leaf = copied(leaf)
        leaf[rows] = new
        return leaf

    return tree_map(replaced, column, part)


def restarted(state: Any, rows: Any, initial: Any) -> Any:
    """A copy of a recurrent state in which these rows are as `initial`, the state of one row.

    On a device, `rows` is a mask, for which nothing waits.
    """

    def chosen(leaf: Any, first: Any) -> Any:
        return torch.where(rows.reshape(-1, *(1,) * (leaf.dim() - 1)), first, leaf)

    def first_rows(leaf: Any, first: Any) -> Any:
        first = first[[0] * len(rows)]
        return to_arrays(first) if isinstance(leaf, numpy.ndarray) else first

    if isinstance(rows, Tensor):
        return tree_map(chosen, state, initial)
    return with_rows(state, rows, tree_map(first_rows, state, initial))
