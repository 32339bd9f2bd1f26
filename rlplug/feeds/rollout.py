"""Rollout: collect some steps, learn from them for some epochs, then discard them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

import attrs
import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import copied, tree_map
from rlplug.envs.normalization import Normalization
from rlplug.errors import RequestError
from rlplug.feeds.feed import Experience, Feed, FeedSetting, OpenFeed, Work, choose, rows_of, share

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
        rows = setting.num_epoch_samples or self.n_steps * setting.num_envs
        if self.batch_size > rows:
            raise RequestError(
                f"batch_size = {self.batch_size:,} is larger than the rollout of {rows:,} rows: "
                f"n_steps = {self.n_steps:,}, {setting.num_envs} environments, "
                f"sampling.num_epoch_samples = {setting.num_epoch_samples:,}.",
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
            columns = rows_of(columns, stepped)
        columns |= _tables(experience, self.state_interval)
        if self._normalization is not None:
            self._normalization.apply(columns)
        described = self._described
        rows = len(columns["rewards"])
        yield Work(Batch(columns, rows), described.n_epochs, described.batch_size)


def _tables(experience: Experience, longest: int) -> dict[str, Any]:
    """Tables with a row for each fragment: pieces of episodes, of at most `longest` steps.

    How many tensors have must be known to the host: it waits for the device once per rollout.
    """
    steps, stepped = experience.steps, experience.stepped
    ends = copied(experience.ended())
    library: Any = torch if isinstance(ends, Tensor) else numpy
    ends[-1] = True
    if stepped is not None:
        grid = experience.grid(stepped)
        # Where the next row is no step, as behind the last one of an environment with few.
        ends[:-1] |= ~grid[1:]
    last = copied(ends)
    if longest:
        last[longest - 1 :: longest] = True
    if stepped is not None:
        last &= grid
    # Transposed: rows are ordered environment by environment.
    envs, times = library.where(last.T)
    stops = envs * steps + times
    stops = stops + 1 if stepped is None else stepped.cumsum(0)[stops]
    starts = library.concatenate((stops[:1] * 0, stops[:-1]))
    following = experience.next_grid("observations")
    tables = {
        "fragments": library.stack((starts, stops), 1),
        "final_observations": rows_of(following, (times, envs)),
    }
    if longest:
        # Whether the next fragment continues the episode.
        tables["continued"] = ~ends[times, envs]
    if experience.states:
        rows = starts if stepped is None else library.where(stepped)[0][starts]
        index, left = rows % steps // (longest or steps), rows % steps % (longest or steps)

        def states(initial: Any, *stored: Any) -> Any:
            """Those before each fragment: stored, or the initial one."""
            return choose(left != 0, initial, library.stack(stored)[index, envs])

        tables["state"] = tree_map(states, experience.initial_state, *experience.states)
    return tables
