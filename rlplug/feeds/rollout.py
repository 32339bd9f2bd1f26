"""Collect a stretch of steps, learn from it in epochs, and forget it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy

from rlplug.batch import Batch
from rlplug.batch.nested import map_leaves, map_pairs, to_arrays
from rlplug.envs.normalization import Normalization
from rlplug.errors import RequestError
from rlplug.feeds.experience import Experience
from rlplug.feeds.feed import Feed, FeedSetting, OpenFeed, Work

__all__ = ["OpenRollout", "Rollout"]


@attrs.frozen(kw_only=True)
class Rollout(Feed):
    """Collect `n_steps` of every environment, then learn from all of them `n_epochs` times."""

    n_steps: int = attrs.field(default=2048, validator=attrs.validators.ge(1))
    batch_size: int = attrs.field(default=64, validator=attrs.validators.ge(0))
    """Rows of a minibatch, 0: all. What is left over makes a last, smaller one: nothing is dropped.
    """
    n_epochs: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    truncated_bptt: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Longest piece of an episode that memory is learned through; 0: up to `n_steps`."""

    def open(self, setting: FeedSetting) -> OpenRollout:
        """Refuse minibatches that no rollout fills."""
        rows = self.n_steps * setting.num_envs
        if self.batch_size > rows:
            raise RequestError(
                f"batch_size = {self.batch_size:,} is larger than the rollout: n_steps = "
                f"{self.n_steps:,} of {setting.num_envs} environments are {rows:,} rows.",
                f"try: --set batch_size={rows}",
            )
        return OpenRollout(self, setting)


class OpenRollout(OpenFeed):
    """Makes each rollout one update: rows of one environment after those of another."""

    by_environment = True

    def __init__(self, described: Rollout, setting: FeedSetting) -> None:
        self.steps_per_collect = described.n_steps
        self._described = described
        self._normalization: Normalization | None = setting.normalization
        piece = described.truncated_bptt if setting.has_memory else 0
        self.state_interval = piece if 0 < piece < described.n_steps else 0

    def take(self, experience: Experience, step: int) -> Iterator[Work]:
        """One update with all rows and the pieces of episodes that they make."""
        columns = dict(experience.columns)
        pieces = _Pieces(experience, self.state_interval)
        if experience.stepped is not None:
            kept = experience.stepped
            columns = {
                name: map_leaves(column, lambda leaf: leaf[kept])
                for name, column in columns.items()
            }
        columns["fragments"] = pieces.spans
        columns["final_observations"] = experience.after(
            "observations", pieces.last_times, pieces.envs
        )
        if experience.states:
            columns["state"] = pieces.states()
        if self.state_interval:
            columns["continued"] = pieces.continued
        if self._normalization is not None:
            self._normalization.apply(columns)
        described = self._described
        yield Work(Batch(columns), described.n_epochs, described.batch_size)


class _Pieces:
    """Where episodes end inside a rollout, and so do the pieces of them that it holds."""

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
            last &= stepped
        # Environment by environment, as the rows lie.
        self.envs, self.last_times = numpy.nonzero(last.T)
        inside = self.last_times < experience.steps - 1
        self.continued = inside & ~ended[self.last_times, self.envs]
        """Whether the next piece goes on where a piece stops."""
        if experience.stepped is None:
            stops = self.envs * experience.steps + self.last_times + 1
        else:
            real = numpy.cumsum(stepped.T.reshape(-1))
            stops = real[self.envs * experience.steps + self.last_times]
        self._starts = numpy.concatenate(([0], stops[:-1])).astype(numpy.int64)
        self.spans = numpy.stack((self._starts, stops.astype(numpy.int64)), axis=1)

    def states(self) -> Any:
        """The memory that each piece begins with: noted, or fresh after the end of an episode."""
        experience, interval = self._experience, self._longest or self._experience.steps
        times = self._first_times()
        noted = times % interval == 0
        which, envs = (times // interval)[noted], self.envs[noted]
        fresh = to_arrays(experience.initial_state)
        table = map_leaves(fresh, lambda leaf: numpy.repeat(leaf, len(times), axis=0))
        for index, state in enumerate(experience.states):
            rows = numpy.flatnonzero(noted)[which == index]
            places = envs[which == index]

            def put(room: Any, leaf: Any, rows: Any = rows, places: Any = places) -> Any:
                room[rows] = leaf[places]
                return room

            table = map_pairs(table, to_arrays(state), put)
        return table

    def _first_times(self) -> Any:
        """When each piece begins."""
        stepped = self._experience.stepped
        if stepped is None:
            return self._starts % self._experience.steps
        return numpy.flatnonzero(stepped)[self._starts] % self._experience.steps
