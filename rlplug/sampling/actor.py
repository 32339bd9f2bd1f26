"""Acts with one module for its rows, and keeps what they do in memory that is reused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch.nested import builtin_dtype, copied, first_leaf, leaves, to_arrays, tree_map
from rlplug.envs.normalization import Normalization
from rlplug.errors import PluginError
from rlplug.feeds import Experience, FinalObservations, OpenFeed
from rlplug.feeds.feed import rows_of
from rlplug.plugin import Acted, ActInput, Module
from rlplug.sampling.checks import EnvironmentChecks
from rlplug.sampling.episode_stats import EpisodeStats
from rlplug.sampling.source import Rows
from rlplug.spaces import ACTION_MASK

__all__ = [
    "Actor",
    "Buffer",
    "StepViews",
    "finals_of",
    "put_rows",
    "restarted",
    "with_rows",
]


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
        """Write one step, or one row for each of these times and environments."""
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
        for step in range(int(counts.min()), steps):
            envs = numpy.flatnonzero(counts <= step)
            for name, column in current.items():
                if name in self.grids:
                    put_rows(self.grids[name], (step, envs), rows_of(column, envs))
            for name in ("rewards", "terminated", "truncated"):
                self.grids[name][step, envs] = 0

    def allocate(self, name: str, example: Any, where: Any = 0) -> Any:
        """Add a column like this example of one step; returns its grid."""
        time = where if isinstance(where, int) else int(where[0].min())
        # Environments may begin to return masks later: everything was allowed before.
        if time and name != ACTION_MASK:
            raise PluginError(
                f"the module returned {name!r} only from step {time + 1} of a collection on.",
                "return the same extras in every step",
            )
        example = to_arrays(example) if self._device is None else example
        self.columns[name] = tree_map(partial(self._empty, opened=name == ACTION_MASK), example)
        grid = self.grids[name] = tree_map(self._by_time, self.columns[name])
        return grid

    def _empty(self, leaf: Any, *, opened: bool) -> Any:
        shape = (self._shape[0] * self._shape[1], *leaf.shape[1:])
        if self._device is None:
            return (numpy.ones if opened else numpy.zeros)(shape, builtin_dtype(leaf.dtype))
        return (torch.ones if opened else torch.zeros)(shape, dtype=leaf.dtype, device=self._device)

    def _by_time(self, leaf: Any) -> Any:
        grid = leaf.reshape(*self._shape, *leaf.shape[1:])
        return grid.swapaxes(0, 1) if self._by_environment else grid


class StepViews:
    """Views of a buffer for each step, for environments that write into it directly."""

    def __init__(self, buffer: Buffer, num: int, observations: Any) -> None:
        grid = buffer.allocate("observations", observations)
        self.observations = [
            *(tree_map(itemgetter(time), grid) for time in range(len(first_leaf(grid)))),
            tree_map(numpy.empty_like, observations),
        ]
        """One more than there are steps: the observations to act on next."""
        self.rewards = list(buffer.allocate("rewards", numpy.zeros(num)))
        self.terminated = list(buffer.allocate("terminated", numpy.zeros(num, bool)))
        self.truncated = list(buffer.allocate("truncated", numpy.zeros(num, bool)))
        self.actions: list[Any] = []
        """Empty until the module's first actions show their shape."""


def put_rows(arrays: Any, rows: Any, column: Any) -> None:
    """Write rows of nested arrays."""

    def put(array: Any, part: Any) -> None:
        array[rows] = part

    tree_map(put, arrays, to_arrays(column))


def with_rows(column: Any, rows: Any, part: Any) -> Any:
    """A copy of a column with other rows: the old one may be stored."""

    def replaced(leaf: Any, new: Any) -> Any:
        # What begins as tensors may go on as arrays, and the other way round.
        if isinstance(new, Tensor):
            leaf = torch.as_tensor(leaf)
        elif isinstance(leaf, Tensor):
            leaf = leaf.numpy(force=True)
        leaf = copied(leaf)
        leaf[rows] = new
        return leaf

    return tree_map(replaced, column, part)


def restarted(state: Any, rows: Any, initial: Any) -> Any:
    """A copy of a recurrent state in which these rows are as `initial`, the state of one row.

    On a device, `rows` is a mask, for which nothing waits.
    """
    if isinstance(rows, Tensor):
        return tree_map(
            lambda leaf, first: torch.where(
                rows.reshape(-1, *(1,) * (leaf.dim() - 1)), first, leaf
            ),
            state,
            initial,
        )

    def first_rows(leaf: Any, first: Any) -> Any:
        first = first[[0] * len(rows)]
        return to_arrays(first) if isinstance(leaf, numpy.ndarray) else first

    return with_rows(state, rows, tree_map(first_rows, state, initial))


def finals_of(finals: Sequence[tuple[Any, Mapping[str, Any]]]) -> FinalObservations | None:
    """Final observations as columns, in the order of their indices; those some lack are left out.

    Each part has `time * num + environment` of its rows.
    """
    if not finals:
        return None
    indices, columns = finals[0]
    if len(finals) > 1:
        indices = numpy.concatenate([own for own, _ in finals])
        shared = set.intersection(*(set(own) for _, own in finals))
        columns = {
            name: tree_map(
                lambda *parts: numpy.concatenate(parts), *(own[name] for _, own in finals)
            )
            for name in sorted(shared)
        }
    if (indices[1:] < indices[:-1]).any():
        order = indices.argsort(kind="stable")
        indices, columns = indices[order], rows_of(columns, order)
    return FinalObservations(indices, columns)


class Actor:
    """One module of a collection, and its rows, each of which has as many steps as were answered.

    An action that is not answered when a collection ends is the first row of the next one. Without
    a `feed`, the module acts and collects nothing.
    """

    def __init__(
        self,
        module: Module,
        rows: Rows,
        checks: EnvironmentChecks,
        feed: OpenFeed | None,
        normalization: Normalization | None,
        *,
        steps: int,
        random: Any,
        device: torch.device | None,
    ) -> None:
        self.rows, self.feed, self.normalization = rows, feed, normalization
        self.act = ActInput(None, random=random, in_torch=device is not None)
        """Input of the module's next call."""
        self.choose = module.forward_exploration
        """How the module acts."""
        self.at: int | None = None
        """The step that the module is told, instead of those of the collection."""
        self.normalize: Callable[[Any], Any] | None = None
        if normalization is not None:
            self.normalize = normalization.observations
        self._needs_log_prob = False
        self.stats = EpisodeStats(rows.stored)
        self.times = numpy.zeros(rows.stored, numpy.int64)
        """Steps of each row in this collection."""
        self.after_reset: Any = True
        self.state: Any = None
        """Recurrent state of all rows."""
        self.states: list[Any] = []
        initial = module.initial_state(1)
        if device is not None and initial is not None:
            initial = tree_map(lambda leaf: torch.as_tensor(leaf, device=device), initial)
        self.initial_state = initial
        """Recurrent state of one new episode; None for modules without one."""
        self._module, self._checks, self._device = module, checks, device
        self._steps = steps
        self._even = True
        """Whether all rows have the same number of steps so far."""
        self._written = False
        """Whether what was seen and done in this step is in the buffer already."""
        self._waiting: dict[str, Any] = {}
        """What was seen and done and is not answered, one row for each."""
        self._finals: list[tuple[Any, Mapping[str, Any]]] = []
        self.last: Experience | None = None
        """The last collection, if it has steps."""
        if feed is not None:
            by_environment = feed.by_environment
            self.buffer = Buffer(steps, rows.stored, by_environment=by_environment, device=device)
            self._interval = feed.state_interval or steps

    def start(self) -> None:
        """All environments were reset."""
        if self.normalization is not None:
            self.normalization.forget_episodes()
        self.stats.forget_episodes()
        self.after_reset, self._waiting, self._written = True, {}, False
        num = self.rows.num
        if self._device is None:
            self.state = self._module.initial_state(num)
        elif self.initial_state is not None:
            self.state = tree_map(
                lambda leaf: leaf.repeat(num, *(1,) * (leaf.dim() - 1)), self.initial_state
            )

    def begin(self) -> None:
        """Begin a collection."""
        self.times[:] = 0
        self._even = True
        self._finals, self.states = [], []

    # -- acting ----------------------------------------------------------------------------------

    def turn(
        self,
        which: Any,
        timestep: int,
        choose: Callable[[ActInput], Acted] | None = None,
        *,
        keep: bool = False,
        in_step: bool = False,
    ) -> Acted:
        """Act for these rows, or for all; with another policy, if it is given.

        With `keep`, what rows see and do is kept until it is answered, where a feed wants it.
        """
        act, rows, state = self.act, self.rows, self.state
        keep = keep and self.feed is not None
        if keep and state is not None:
            self.keep_states(which)
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
        if keep:
            self._keep(acted, which, in_step=in_step)
        return acted

    def need_log_prob(self) -> None:
        """Refuse actions without log-probabilities if these matter: other weights may learn."""
        if self.feed is not None and self.feed.on_policy:
            self.act.wants_log_prob = self._needs_log_prob = True

    def ask_for_log_prob(self) -> bool:
        """Have the module return log-probabilities; whether it returned them already, unasked.

        To find out, it acts for a copy of its input, the random generator included.
        """
        own, state = self.act, self.state
        if own.wants_log_prob:
            return True
        act = self.act = copy.copy(own)
        if not act.in_torch:
            act.random, act.drawn = copy.deepcopy(act.random), list(act.drawn)
        self.state = None if state is None else tree_map(copied, state)
        with torch.no_grad():
            unasked = "log_prob" in self.turn(None, 0).extras
        self.act, self.state = own, state
        own.wants_log_prob = True
        return unasked

    # -- collecting ------------------------------------------------------------------------------

    def keep_states(self, which: Any) -> None:
        """Copy the recurrent state of rows that are at the start of a fragment."""
        state = self.state
        if self._even and which is None:
            if self.times[0] % self._interval == 0:
                self.states.append(tree_map(copied, state))
            return
        which = numpy.arange(self.rows.num) if which is None else which
        numbers, inside = numpy.divmod(self.times[which], self._interval)
        for number in numpy.unique(numbers[inside == 0]).tolist():
            rows = which[(inside == 0) & (numbers == number)]
            while len(self.states) <= number:
                self.states.append(tree_map(copied, to_arrays(state)))
            put_rows(self.states[number], rows, rows_of(state, rows))

    def _keep(self, acted: Acted, which: Any, *, in_step: bool) -> None:
        """Keep what rows see and do, in the buffer if all act `in_step`."""
        rows = self.rows
        columns = {"actions": acted.actions, **acted.extras}
        if self._device is not None:
            self._check_tensors(columns)
        if self._needs_log_prob and "log_prob" not in columns:
            raise PluginError(
                f"{type(self._module).__name__}.forward_exploration returned no log_prob, which "
                "is needed where the weights that act may be older than those that learn.",
                'try: Acted(…, extras={"log_prob": …}) if act.wants_log_prob',
            )
        which, columns = rows.stored_of(which, columns)
        self._written = in_step and which is None and self._even
        if self._written:
            self.buffer.write(int(self.times[0]), {**rows.current, **columns})
            return
        for name, column in rows.current.items():
            self._wait(name, which, column if which is None else rows_of(column, which))
        for name, column in columns.items():
            self._wait(name, which, to_arrays(column))

    def store(self, **more: Any) -> None:
        """Store the answers of a step, with more columns of the answered rows."""
        rows, times, which = self.rows, self.times, self.rows.answered
        if self.feed is None or (which is not None and not len(which)):
            self.end()
            return
        outcome = {
            "rewards": rows.rewards,
            "terminated": rows.terminated,
            "truncated": rows.truncated,
        }
        for name in ("stepped", "ends"):
            if getattr(rows, name) is not None:
                outcome[name] = getattr(rows, name)
        if which is None and self._written:
            self.buffer.write(int(times[0]), {**outcome, **more})
        else:
            which = numpy.arange(rows.stored) if which is None else which
            waiting = {} if self._written else rows_of(self._waiting, which)
            answers = {**waiting, **rows_of(outcome, which), **more}
            self.buffer.write((times[which], which), answers)
            self._even = self._even and rows.answered is None
        self._written = False
        self.end()
        times[slice(None) if which is None else which] += 1
        if rows.infos:
            self.stats.add_infos(rows.infos, rows.stepped)

    def end(self) -> None:
        """Take the ends of episodes of the last step."""
        rows = self.rows
        for ended, columns in rows.finals:
            self._finals.append((self.times[ended] * rows.stored + ended, columns))
        if rows.restarted is not None:
            self.restart(rows.restarted)

    def restart(self, rows: Any) -> None:
        """Reset the recurrent state of rows whose episode ended."""
        if self.state is not None and len(rows):
            self.state = restarted(self.state, rows, self.initial_state)

    def experience(self, timestep: int) -> Experience:
        """The steps of the collection, valid until the next one; maybe none."""
        feed, times, num = self.feed, self.times, self.rows.stored
        assert feed is not None
        self.last, steps = None, int(times[0])
        least = steps
        if not self._even:
            steps, least = int(times.max()), int(times.min())
        columns, counts, current = dict(self.buffer.columns), None, self.rows.current
        if not steps:
            following = tree_map(copied, current) if feed.wants_next else {}
            by_env = feed.by_environment
            return Experience({}, steps=0, num_envs=num, by_environment=by_env, following=following)
        stepped, ends = columns.pop("stepped", None), columns.pop("ends", None)
        if least < self._steps:
            if feed.by_environment:
                steps = self._steps
            else:
                # The rows of later times are not used.
                columns = rows_of(columns, slice(steps * num))
            counts = times.copy()
            self.buffer.pad(times, steps, current)
            grid = numpy.arange(steps)[:, None] < times
            stepped = (grid.T if feed.by_environment else grid).reshape(-1)
        following = current if feed.wants_next else {}
        if self._device is None:
            # Batches of single steps are not copied again.
            columns = tree_map(copied, columns) if steps == 1 else columns
            following = tree_map(copied, following) if self.rows.is_live else following
        elif ends is None and feed.wants_next and stepped is None:
            # The observation before the end is the nearest to what is not given.
            ends = columns["observations"]
        self.last = experience = Experience(
            columns,
            steps=steps,
            num_envs=num,
            by_environment=feed.by_environment,
            following=following,
            finals=finals_of(self._finals),
            ends=ends,
            stepped=stepped,
            counts=counts,
            after_reset=self.after_reset,
            states=self.states,
            initial_state=self.initial_state,
        )
        self.after_reset = False
        if self._device is None:
            self._count(experience)
            self._checks.check_experience(experience, timestep)
            after = timestep + steps * num
            self._checks.check("an observation", current["observations"], after)
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

    def _wait(self, name: str, which: Any, column: Any) -> None:
        if name not in self._waiting:
            num = self.rows.stored
            self._waiting[name] = tree_map(
                lambda leaf: numpy.zeros((num, *leaf.shape[1:]), leaf.dtype), column
            )
        put_rows(self._waiting[name], slice(None) if which is None else which, column)

    def _count(self, experience: Experience) -> None:
        """Count the episodes."""
        grids, stepped, steps = self.buffer.grids, experience.stepped, experience.steps
        rewards = grids["rewards"][:steps]
        terminated, truncated = grids["terminated"][:steps], grids["truncated"][:steps]
        real = None if stepped is None else experience.grid(stepped)
        self.stats.add_rollout(rewards, terminated, truncated, real)

    def _check_tensors(self, columns: Mapping[str, Any]) -> None:
        """Refuse what is not a tensor on the device; where tensors are is known to the host."""
        for name, column in columns.items():
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
        return {"waiting": self._waiting, "state": self.state, "after_reset": self.after_reset}

    def set_episodes(self, saved: Mapping[str, Any]) -> None:
        """Go on with episodes in progress."""
        self._waiting, self.state = saved["waiting"], saved["state"]
        self.after_reset, self._written = saved["after_reset"], False
