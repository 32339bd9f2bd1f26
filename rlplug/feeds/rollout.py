"""Rollout: collect some steps, learn from them for some epochs, then discard them."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, ClassVar, Self

import attrs
import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import copied, tree_map
from rlplug.envs.normalization import Normalization
from rlplug.errors import RequestError
from rlplug.feeds.feed import Experience, Feed, FeedSetting, OpenFeed, Work, choose, share

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
        columns, stepped = dict(experience.columns), experience.stepped
        if stepped is not None:
            if not stepped.any():
                return
            columns = tree_map(itemgetter(stepped), columns)
        elif self._normalization is None:
            columns |= experience.uploaded
        fragments = _Fragments(experience, self.state_interval)
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
    """Fragments of a rollout: pieces of episodes that end with them, or at `longest` steps.

    How many tensors have must be known to the host: it waits for the device once per rollout.
    """

    def __init__(self, experience: Experience, longest: int) -> None:
        self._experience = experience
        self._interval = longest or experience.steps
        steps, stepped = experience.steps, experience.stepped
        ends = copied(experience.ended())
        self._library: Any = torch if isinstance(ends, Tensor) else numpy
        ends[-1] = True
        last = ends
        if stepped is not None:
            grid = experience.grid(stepped)
            # Where the next row is no step, as behind the last one of an environment with few.
            ends[:-1] |= ~grid[1:]
            last = ends & grid
        if longest:
            last = copied(last)
            last[longest - 1 :: longest] = True if stepped is None else grid[longest - 1 :: longest]
        # Transposed: rows are ordered environment by environment.
        self._envs, self._times = self._library.where(last.T)
        self.continued = ~ends[self._times, self._envs]
        """Whether the next fragment continues the episode."""
        stops = self._envs * steps + self._times
        stops = stops + 1 if stepped is None else stepped.cumsum(0)[stops]
        starts = self._library.concatenate((stops[:1] * 0, stops[:-1]))
        self.spans = self._library.stack((starts, stops), 1)
        if stepped is not None:
            starts = self._library.where(stepped)[0][starts]
        self._first_times = starts % steps

    def final_observations(self) -> Any:
        """The observation after each fragment."""
        following = self._experience.next_grid("observations")
        return tree_map(lambda leaf: leaf[self._times, self._envs], following)

    def states(self) -> Any:
        """The recurrent state before each fragment: stored, or the initial one."""
        is_stored = self._first_times % self._interval == 0
        index = self._first_times // self._interval

        def table(initial: Any, *stored: Any) -> Any:
            return choose(~is_stored, initial, self._library.stack(stored)[index, self._envs])

        return tree_map(table, self._experience.initial_state, *self._experience.states)
