"""Rollout: collect some steps, learn from them for some epochs, then discard them."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, ClassVar, Self

import attrs
import numpy
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import to_arrays, tree_map
from rlplug.envs.normalization import Normalization
from rlplug.errors import RequestError
from rlplug.feeds.feed import Experience, Feed, FeedSetting, OpenFeed, Work, share
from rlplug.feeds.tensor_fragments import TensorFragments

__all__ = ["OpenRollout", "Rollout"]


@attrs.frozen(kw_only=True)
class Rollout(Feed):
    """Collect `n_steps` of every environment, then learn from all of them `n_epochs` times."""

    takes_tensors: ClassVar[bool] = True
    n_steps: int = attrs.field(default=2048, validator=attrs.validators.ge(1))
    """Steps of each environment in one rollout."""
    batch_size: int = attrs.field(default=64, validator=attrs.validators.ge(0))
    """Rows of a minibatch; 0: all. The last one may be smaller: no row is dropped."""
    n_epochs: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Passes over all rows, shuffled into minibatches again for each."""
    truncated_bptt: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Longest fragment of an episode for backpropagation through time; 0: `n_steps`."""

    def shared(self, learners: int) -> Self:
        """A share of each minibatch."""
        return attrs.evolve(self, batch_size=share(self.batch_size, learners, "batch_size"))

    def open(self, setting: FeedSetting) -> OpenRollout:
        """Refuse minibatches larger than the rollout."""
        rows = self.n_steps * setting.num_envs
        if setting.num_epoch_samples:
            if self.batch_size > setting.num_epoch_samples:
                raise RequestError(
                    f"batch_size = {self.batch_size:,} is larger than a collection: "
                    f"sampling.num_epoch_samples = {setting.num_epoch_samples:,}.",
                    f"try: --set batch_size={setting.num_epoch_samples}",
                )
        elif self.batch_size > rows:
            raise RequestError(
                f"batch_size = {self.batch_size:,} is larger than the rollout: n_steps = "
                f"{self.n_steps:,} of {setting.num_envs} environments are {rows:,} rows.",
                f"try: --set batch_size={rows}",
            )
        return OpenRollout(self, setting)


class OpenRollout(OpenFeed):
    """Makes each rollout one update, its rows ordered environment by environment."""

    by_environment = True
    on_policy = True

    def __init__(self, described: Rollout, setting: FeedSetting) -> None:
        self.steps_per_collect = described.n_steps
        self._described = described
        self._normalization: Normalization | None = setting.normalization
        longest = described.truncated_bptt if setting.has_memory else 0
        self.state_interval = longest if 0 < longest < described.n_steps else 0

    def take(self, experience: Experience, step: int) -> Iterator[Work]:
        """One update with all rows and their fragments."""
        columns = dict(experience.columns)
        on_device = isinstance(columns["rewards"], Tensor)
        fragments: Any = (TensorFragments if on_device else _Fragments)(
            experience, self.state_interval
        )
        if experience.stepped is not None:
            if not experience.stepped.any():
                return
            columns = tree_map(itemgetter(experience.stepped), columns)
        elif self._normalization is None:
            columns |= experience.uploaded
        columns["fragments"] = fragments.spans
        columns["final_observations"] = fragments.final_observations()
        if experience.states:
            columns["state"] = fragments.states()
        if self.state_interval:
            columns["continued"] = fragments.continued
        if self._normalization is not None:
            self._normalization.apply(columns)
        described = self._described
        rows = len(columns["rewards"])
        yield Work(Batch(columns, rows), described.n_epochs, described.batch_size)


class _Fragments:
    """Fragments of a rollout: pieces of episodes that end with them, or at `longest` steps."""

    def __init__(self, experience: Experience, longest: int) -> None:
        self._experience = experience
        self._longest = longest
        ended = experience.ended()
        last = ended.copy()
        last[-1] = True
        if longest:
            last[longest - 1 :: longest] = True
        if experience.stepped is not None:
            stepped = experience.grid(experience.stepped)
            # Where the next row is no step, as behind the last one of an environment with few.
            last[:-1] |= ~stepped[1:]
            last &= stepped
        # Transposed: rows are ordered environment by environment.
        self.envs, self.last_times = numpy.nonzero(last.T)
        ends = ended.copy()
        ends[-1] = True
        if experience.stepped is not None:
            ends[:-1] |= ~stepped[1:]
        self.continued = ~ends[self.last_times, self.envs]
        """Whether the next fragment continues the episode."""
        if experience.stepped is None:
            stops = self.envs * experience.steps + self.last_times + 1
        else:
            real = numpy.cumsum(stepped.T.reshape(-1))
            stops = real[self.envs * experience.steps + self.last_times]
        self._starts = numpy.concatenate(([0], stops[:-1])).astype(numpy.int64)
        self.spans = numpy.stack((self._starts, stops.astype(numpy.int64)), axis=1)

    def final_observations(self) -> Any:
        """The observation after each fragment."""
        return self._experience.after("observations", self.last_times, self.envs)

    def states(self) -> Any:
        """The recurrent state before each fragment: stored, or the initial one."""
        experience, interval = self._experience, self._longest or self._experience.steps
        times = self._first_times()
        stored = times % interval == 0
        which, envs = (times // interval)[stored], self.envs[stored]
        initial = to_arrays(experience.initial_state)
        table = tree_map(lambda leaf: numpy.repeat(leaf, len(times), axis=0), initial)
        for index, state in enumerate(experience.states):
            rows = numpy.flatnonzero(stored)[which == index]
            places = envs[which == index]

            def put(table: Any, leaf: Any, rows: Any = rows, places: Any = places) -> Any:
                table[rows] = leaf[places]
                return table

            table = tree_map(put, table, to_arrays(state))
        return table

    def _first_times(self) -> Any:
        """The time of the first step of each fragment."""
        stepped = self._experience.stepped
        if stepped is None:
            return self._starts % self._experience.steps
        return numpy.flatnonzero(stepped)[self._starts] % self._experience.steps
