"""Feeds: they take in experience and say what to learn from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias

import attrs
import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlplug.batch.nested import copied, to_arrays, tree_map
from rlplug.errors import RequestError

if TYPE_CHECKING:
    import gymnasium

    from rlplug.batch import Batch
    from rlplug.envs.normalization import Normalization

__all__ = [
    "Experience",
    "Feed",
    "FeedSetting",
    "FinalObservations",
    "Index",
    "OpenFeed",
    "Rows",
    "Work",
    "share",
]

Index: TypeAlias = NDArray[numpy.int64]


@attrs.frozen(kw_only=True)
class FeedSetting:
    """What a feed may need to know of the run that opens it."""

    observation_space: gymnasium.Space[Any]
    """Of one environment, before normalisation."""
    action_space: gymnasium.Space[Any]
    num_envs: int
    steps: int
    """Environment steps of the whole run."""
    seed: int
    double: bool = False
    """Whether the learner computes in float64."""
    has_memory: bool = False
    """Whether the module is recurrent."""
    frame_stack: int = 1
    """Frames that an observation is a stack of, the newest last."""
    num_epoch_samples: int = 0
    """Environment steps of a collection; 0: what the feed asks for."""
    normalization: Normalization | None = None
    device: torch.device | None = None
    """Where experience is, if it is tensors; None: arrays."""
    least: Callable[[float], float] | None = None
    """Gives the smallest of a number over all learners, where there are several of one module."""


@dataclass(slots=True)
class Work:
    """One update to be made."""

    batch: Batch
    num_iters: int = 1
    minibatch_size: int = 0
    """Rows of a minibatch; 0: the whole batch."""
    by_module: Mapping[str, Work] | None = None
    """The work of each module that takes part, where there are several; `batch` is one of theirs.
    """


class Rows(Protocol):
    """Stored rows that a checkpoint saves once, not whole each time.

    Each environment numbers its rows from 0 on, in the order they came; only the newest may still
    change.
    """

    rows: int
    """How many rows of each environment are kept."""
    block: int
    """Rows that are saved together."""

    def kept(self) -> list[tuple[int, int]]:
        """The numbers of the oldest and the newest row of each environment."""

    def copy_rows(self, env: int, first: int, stop: int) -> dict[str, Any]:
        """A copy of some rows, nested columns; equal experience gives equal copies."""

    def put_rows(self, env: int, first: int, columns: Mapping[str, Any]) -> None:
        """Put a copy back."""

    def clear(self) -> None:
        """Forget all rows."""

    def restart(self, newest: Sequence[int], rows: int) -> None:
        """Forget all rows and continue after these; refused if another number of them is kept."""


class OpenFeed:
    """A feed in a run: takes in experience and says what to learn from it."""

    steps_per_collect: int = 1
    """Steps of the vector environment per collection."""
    wants_next: bool = True
    """Whether it needs next observations."""
    by_environment: bool = False
    """Whether rows are ordered environment by environment instead of by time."""
    on_policy: bool = False
    """Whether the log-probabilities of actions matter: weights may be newer than those that acted.
    """
    state_interval: int = 0
    """Steps between stored recurrent states; 0: only the one before the first step."""
    rows: Rows | None = None
    """Rows that checkpoints save incrementally; None: `get_state` has all."""

    def take(self, experience: Experience, step: int) -> Iterable[Work]:
        """Yields the updates to make now; each is drawn after the one before was made."""
        raise TypeError(f"{type(self).__name__} must define take")

    def learned(self, work: Work, rows: Mapping[str, Any]) -> None:
        """Called after an update with its per-row values and their `indices`."""

    def describe(self) -> str:
        """What it stores and the memory that takes, in one line; empty if it stores nothing."""
        return ""

    def get_state(self) -> dict[str, Any]:
        """All that the next batches depend on."""
        return {}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""

    def get_state_of_rows(self) -> dict[str, Any]:
        """What belongs to the rows and changes with every batch, such as priorities."""
        return {}

    def get_state_without_rows(self) -> dict[str, Any]:
        """The state without `rows` and without what belongs to them."""
        return self.get_state()

    def set_state_of_rows(self, saved: Mapping[str, Any]) -> None:
        """Restore what `get_state_of_rows` gave, after all rows are back."""

    def set_state_without_rows(self, saved: Mapping[str, Any], *, empty: bool) -> None:
        """Restore what `get_state_without_rows` gave; `empty`: the rows will not come back."""
        self.set_state(saved)


@attrs.frozen(kw_only=True)
class Feed:
    """A description of how experience is collected and turned into batches."""

    takes_tensors: ClassVar[bool] = False
    """Whether it takes in experience of tensors; otherwise, it gets arrays."""
    team: bool = False
    """Of several agents, a row is all of a module at one step of an environment: observations are
    `observation`, `present` and `action_mask`, with the agents as first dimension."""
    global_state: bool = False
    """Of several agents, observations are `observation` and `state`, the environment's."""

    @classmethod
    def of(cls, config: object, **others: Any) -> Self:
        """With the options of `config` that have the names of its fields, and with `others`."""
        names = [field.name for field in attrs.fields(cls) if hasattr(config, field.name)]
        return cls(**{**{name: getattr(config, name) for name in names}, **others})

    def open(self, setting: FeedSetting) -> OpenFeed:
        """Returns the feed of a run, or refuses options that cannot work there."""
        raise TypeError(f"{type(self).__name__} must define open")

    def shared(self, learners: int) -> Self:
        """What one of several learners has, each with as many of the environments."""
        return self


def share(number: int, count: int, name: str, among: str = "learners") -> int:
    """An equal share of a number; refused if there is none."""
    if number % count:
        fitting = max(number // count, 1) * count
        raise RequestError(
            f"{name} = {number:,} cannot be shared equally by {count} {among}.",
            f"try: --set {name}={fitting}",
        )
    return number // count


@dataclass(slots=True)
class FinalObservations:
    """Last observations of episodes, from vectors that return the next episode's instead."""

    indices: Index
    """`time * num_envs + environment` of the steps that led to them, increasing."""
    columns: Mapping[str, Any]
    """`observations`, and `action_mask` where there are masks, one row per index."""


@dataclass(slots=True)
class Experience:
    """Columns with one row per environment and step; valid until the next is collected.

    Rows are ordered by time, or environment by environment. All columns are arrays, or all are
    tensors on one device, which nothing here waits for.
    """

    columns: dict[str, Any]
    _: KW_ONLY
    steps: int
    num_envs: int
    by_environment: bool = False
    following: Mapping[str, Any] = field(default_factory=dict)
    """`observations`, maybe `action_mask`, after the last step, one row per environment."""
    finals: FinalObservations | None = None
    ends: Any = None
    """Of tensors: observations with a row for each row, which is the last one of an episode where
    one ended; None where the next row has it."""
    stepped: NDArray[numpy.bool_] | Tensor | None = None
    """False where an environment only reset, in rows beyond `counts`, and where steps are left out;
    None if all stepped."""
    discarded: int = 0
    """Steps that were taken and are left out."""
    counts: Index | None = None
    """Rows of each environment, where they are not equally many; None: `steps` of each.

    The rows beyond hold the observation to act on next."""
    after_reset: bool | NDArray[numpy.bool_] = False
    """Whether the environments, or which, were reset before it: earlier steps do not lead here."""
    uploaded: Mapping[str, Any] = field(default_factory=dict)
    """Columns that were copied to the learner's device already, with the same rows."""
    states: Sequence[Any] = ()
    """Recurrent states before the first step, and then at equal intervals."""
    initial_state: Any = None
    """Recurrent state of one new episode."""

    @property
    def count(self) -> int:
        """The number of environment steps; of tensors, with those that only reset."""
        if self.stepped is None or isinstance(self.stepped, Tensor):
            return self.steps * self.num_envs
        return int(numpy.count_nonzero(self.stepped)) + self.discarded

    def grid(self, column: Any) -> Any:
        """A view of a column with shape (steps, num_envs, …)."""
        return tree_map(self._grid, column)

    def absorb_into(self, normalization: Normalization) -> None:
        """Update running statistics with these steps; columns are arrays."""
        observations, stepped = self.columns["observations"], self.stepped
        if stepped is not None:
            observations = tree_map(lambda leaf: leaf[stepped], observations)
            stepped = self.grid(stepped)
        normalization.absorb(
            observations, self.grid(self.columns["rewards"]), self.ended(), stepped
        )

    def ended(self) -> Any:
        """Where episodes ended, shape (steps, num_envs)."""
        columns = self.columns
        return self._grid(columns["terminated"] | columns["truncated"])

    def after(self, name: str, times: Index, envs: Index) -> Any:
        """Next `observations` or `action_mask` of these steps, one row each."""
        columns = [to_arrays(self.columns[name]), to_arrays(self.following[name])]
        last = numpy.flatnonzero(times + 1 == self.steps)
        later = numpy.minimum(times + 1, self.steps - 1)
        if self.finals is not None and name in self.finals.columns:
            columns.append(self.finals.columns[name])
            indices, wanted = self.finals.indices, times * self.num_envs + envs
            near = numpy.searchsorted(indices, wanted).clip(max=len(indices) - 1)
            found = numpy.flatnonzero(indices[near] == wanted)

        def rows(leaf: Any, following: Any, final: Any = None) -> Any:
            chosen = self._grid(leaf)[later, envs]
            if len(last):
                chosen[last] = following[envs[last]]
            if final is not None:
                chosen[found] = final[near[found]]
            return chosen

        return tree_map(rows, *columns)

    def next_observations(self) -> Any:
        """The next observations of all rows, in their order."""
        if isinstance(self.columns["rewards"], Tensor):
            return tree_map(self._rows, self.next_grid("observations"))
        if self.steps > 1:
            return self.after("observations", *self.times_and_envs())
        following, finals = self.following["observations"], self.finals
        if finals is None:
            return following

        def put(leaf: Any, final: Any) -> Any:
            leaf = copied(leaf)
            leaf[finals.indices] = final
            return leaf

        return tree_map(put, following, finals.columns["observations"])

    def next_grid(self, name: str) -> Any:
        """Of tensors, the next `observations` or `action_mask`, shape (steps, num_envs, …)."""
        finals = self.ends if name == "observations" else None
        seen, following = self.grid(self.columns[name]), self.following[name]

        def shifted(leaf: Tensor, last: Tensor) -> Tensor:
            return torch.cat([leaf[1:], last.to(leaf.dtype).unsqueeze(0)])

        later = tree_map(shifted, seen, following)
        if finals is None:
            return later
        ended = self.ended()

        def with_finals(leaf: Tensor, final: Tensor) -> Tensor:
            where = ended.reshape(*ended.shape, *(1,) * (leaf.dim() - 2))
            return torch.where(where, final.to(leaf.dtype), leaf)

        return tree_map(with_finals, later, self.grid(finals))

    def times_and_envs(self) -> tuple[Index, Index]:
        """Time and environment of each row."""
        order = numpy.arange(self.steps * self.num_envs)
        if self.by_environment:
            envs, times = numpy.divmod(order, self.steps)
        else:
            times, envs = numpy.divmod(order, self.num_envs)
        return times, envs

    def _rows(self, grid: Tensor) -> Tensor:
        return (grid.transpose(0, 1) if self.by_environment else grid).flatten(0, 1)

    def _grid(self, leaf: Any) -> Any:
        shape = leaf.shape[1:]
        if self.by_environment:
            return leaf.reshape(self.num_envs, self.steps, *shape).swapaxes(0, 1)
        return leaf.reshape(self.steps, self.num_envs, *shape)
