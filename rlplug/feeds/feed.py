"""Feeds: they take in experience and say what to learn from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import attrs
import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlplug.batch.nested import tree_map
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
    "ModuleExperience",
    "ModuleFeeds",
    "OpenFeed",
    "Work",
    "choose",
    "rows_of",
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
    rows: Any = None
    """Rows that checkpoints save once, as `Ring` has them; None: `get_state` has all."""

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


def choose(rows: Any, first: Any, second: Any) -> Any:
    """The first leaf in these rows, the second in all others; in the dtype of the second."""
    rows = rows.reshape(*rows.shape, *(1,) * (second.ndim - rows.ndim))
    if isinstance(second, Tensor):
        return torch.where(rows, first.to(second.dtype), second)
    return numpy.where(rows, first, second).astype(second.dtype, copy=False)


def rows_of(column: Any, rows: Any) -> Any:
    """These rows of a nested column."""
    return tree_map(lambda leaf: leaf[rows], column)


def _put(rows: Any, leaf: Any, part: Any) -> None:
    leaf[rows] = part


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
        """Update running statistics with these steps."""
        columns, stepped = self.columns, self.stepped
        observations, rewards = columns["observations"], columns["rewards"]
        if isinstance(rewards, Tensor):
            observations = self.grid(observations)
        elif stepped is not None:
            observations = rows_of(observations, stepped)
        stepped = None if stepped is None else self.grid(stepped)
        normalization.absorb(observations, self.grid(rewards), self.ended(), stepped)

    def ended(self) -> Any:
        """Where episodes ended, shape (steps, num_envs)."""
        columns = self.columns
        return self._grid(columns["terminated"] | columns["truncated"])

    def next_rows(self, name: str) -> Any:
        """The next `observations` or `action_mask` of all rows, in their order."""
        return tree_map(self._rows, self.next_grid(name))

    def next_grid(self, name: str) -> Any:
        """The next `observations` or `action_mask`, shape (steps, num_envs, …)."""

        def later(leaf: Any, following: Any) -> Any:
            library: Any = torch if isinstance(leaf, Tensor) else numpy
            return library.concatenate((self._grid(leaf)[1:], following[None]))

        grid = tree_map(later, self.columns[name], self.following[name])
        if self.finals is not None and name in self.finals.columns:
            ends = numpy.divmod(self.finals.indices, self.num_envs)
            tree_map(partial(_put, ends), grid, self.finals.columns[name])
        if self.ends is not None and name == "observations":
            return tree_map(partial(choose, self.ended()), self.grid(self.ends), grid)
        return grid

    def times_and_envs(self) -> tuple[Index, Index]:
        """Time and environment of each row."""
        order = numpy.arange(self.steps * self.num_envs)
        if self.by_environment:
            envs, times = numpy.divmod(order, self.steps)
        else:
            times, envs = numpy.divmod(order, self.num_envs)
        return times, envs

    def _rows(self, grid: Any) -> Any:
        rows = grid.swapaxes(0, 1) if self.by_environment else grid
        return rows.reshape(self.steps * self.num_envs, *grid.shape[2:])

    def _grid(self, leaf: Any) -> Any:
        shape = leaf.shape[1:]
        if self.by_environment:
            return leaf.reshape(self.num_envs, self.steps, *shape).swapaxes(0, 1)
        return leaf.reshape(self.steps, self.num_envs, *shape)


@dataclass(slots=True)
class ModuleExperience(Experience):
    """A collection in environments with several agents; it counts steps of the environments."""

    by_module: Mapping[str, Experience] = field(default_factory=dict, kw_only=True)
    """What the agents of each module did; modules whose agents did nothing are missing."""
    idle: Mapping[str, Experience] = field(default_factory=dict, kw_only=True)
    """Of those modules an experience without steps: what their agents are to act on."""
    over: Any = field(default=None, kw_only=True)
    """Where episodes of the environments ended, shape (steps, num_envs)."""

    def ended(self) -> Any:
        """Where episodes of the environments ended, shape (steps, num_envs)."""
        return self.over

    def absorb_into(self, normalization: Any) -> None:
        """Update the running statistics of each module."""
        for module_id, experience in self.by_module.items():
            experience.absorb_into(normalization.by_module[module_id])


class ModuleFeeds(OpenFeed):
    """One feed of a run for each module that is trained."""

    def __init__(self, by_module: Mapping[str, OpenFeed]) -> None:
        self.by_module = dict(by_module)
        self.steps_per_collect = max(feed.steps_per_collect for feed in by_module.values())
        self.on_policy = any(feed.on_policy for feed in by_module.values())
        self.sum: Callable[[Sequence[float]], Sequence[float]] | None = None
        """Adds numbers up over the learners of a run, where there are several."""
        self.learners = 1

    def take(self, experience: Experience, step: int) -> Iterator[Work]:
        """The updates of all modules; what has the same passes and minibatches is one update.

        Of several learners, all update the same modules: those that each has a batch for.
        """
        assert isinstance(experience, ModuleExperience)
        waiting = {
            module_id: iter(self.by_module[module_id].take(own, step))
            for module_id, own in experience.by_module.items()
            if module_id in self.by_module
        }
        while works := self._next(waiting):
            together: dict[tuple[int, int], dict[str, Work]] = {}
            for module_id, work in works.items():
                together.setdefault((work.num_iters, work.minibatch_size), {})[module_id] = work
            for passes, alike in together.items():
                first = next(iter(alike.values()))
                yield Work(first.batch, *passes, by_module=alike)

    def _next(self, waiting: Mapping[str, Iterator[Work]]) -> dict[str, Work]:
        """The next work of each module that has more, and that every learner has a batch for."""
        drawn = {module_id: next(works, None) for module_id, works in waiting.items()}
        works = {module_id: work for module_id, work in drawn.items() if work is not None}
        if self.sum is None:
            return works
        # Their gradients are averaged.
        counts = self.sum([float(module_id in works) for module_id in self.by_module])
        return {
            module_id: works[module_id]
            for module_id, count in zip(self.by_module, counts, strict=True)
            if count == self.learners
        }

    def learned(self, work: Work, rows: Mapping[str, Any]) -> None:
        """Called after an update with the per-row values of each module."""
        for module_id, own in (work.by_module or {}).items():
            self.by_module[module_id].learned(own, rows.get(module_id, {}))

    def describe(self) -> str:
        """What the feeds store, one after the other."""
        texts = {module_id: feed.describe() for module_id, feed in self.by_module.items()}
        return "; ".join(f"{module_id}: {text}" for module_id, text in texts.items() if text)

    def get_state(self) -> dict[str, Any]:
        """All that the next batches depend on, by module."""
        return {module_id: feed.get_state() for module_id, feed in self.by_module.items()}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        for module_id, feed in self.by_module.items():
            feed.set_state(saved[module_id])
