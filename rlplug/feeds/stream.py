"""Stream and Logged: rows that are learned from in the order they come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import attrs
import numpy

from rlplug.batch import Batch
from rlplug.batch.nested import copied, tree_map
from rlplug.envs.normalization import Normalization
from rlplug.errors import RequestError
from rlplug.feeds.feed import Experience, Feed, FeedSetting, OpenFeed, Work, rows_of
from rlplug.feeds.replay import Replay

__all__ = ["Logged", "OpenLogged", "OpenStream", "Stream", "feed_for_log"]

_positive = attrs.validators.ge(1)


@attrs.frozen(kw_only=True)
class Stream(Feed):
    """Hand each piece of experience to the learner once, then forget it."""

    takes_tensors: ClassVar[bool] = True
    steps_per_update: int = attrs.field(default=1, validator=_positive)
    """Steps of the vector environment per update."""
    one_step_episodes: bool = False
    """For bandits: longer episodes are refused, and there are no `next_observations`."""

    def open(self, setting: FeedSetting) -> OpenStream:
        """Returns the feed of a run."""
        return OpenStream(self, setting.normalization)


class OpenStream(OpenFeed):
    """Makes each experience one batch."""

    def __init__(self, described: Stream, normalization: Normalization | None) -> None:
        self.steps_per_collect = described.steps_per_update
        self.wants_next = self.on_policy = not described.one_step_episodes
        self._normalization = normalization

    def take(self, experience: Experience, step: int) -> Iterable[Work]:
        """One update with all of it."""
        columns = experience.columns
        if experience.steps > 1:
            # The sampler reuses the memory of these columns.
            columns = tree_map(copied, columns)
        if self.wants_next:
            columns["next_observations"] = experience.next_rows("observations")
        stepped = experience.stepped
        if stepped is not None and not stepped.all():
            if not stepped.any():
                return ()
            columns = rows_of(columns, stepped)
        if self._normalization is not None:
            # The sampler absorbs the experience as it was.
            columns = dict(columns)
            self._normalization.apply(columns)
        # For streams of single steps, a tuple is cheaper than a generator.
        return (Work(Batch(columns, len(columns["rewards"]))),)


@attrs.frozen(kw_only=True)
class Logged(Feed):
    """Learn from each row of a log once per pass over it, in minibatches."""

    batch_size: int = attrs.field(default=256, validator=_positive)
    """Rows of a minibatch, one update each."""
    wants_next: bool = False
    """Whether batches need `next_observations`."""
    gamma: float = 0.99
    """The `discounts` of rows, if they have next observations."""
    n_step: int = attrs.field(default=1, validator=_positive)
    """Steps of a transition, if rows have next observations."""

    def open(self, setting: FeedSetting) -> OpenLogged:
        """Returns the feed of a run."""
        if setting.has_memory:
            raise RequestError(
                "minibatches of a log are single rows, but the module has memory.",
                "try: the option without memory",
            )
        return OpenLogged(self)


class OpenLogged(OpenFeed):
    """Makes each minibatch that is read one update."""

    def __init__(self, described: Logged) -> None:
        self.wants_next = described.wants_next
        self.minibatch_size = described.batch_size
        """Rows that are read per update."""
        self.gamma, self.n_step = described.gamma, described.n_step

    def take(self, experience: Experience, step: int) -> Iterable[Work]:
        """One update with all of it."""
        columns = dict(experience.columns)
        if self.wants_next and "discounts" not in columns:
            columns["discounts"] = numpy.full(experience.count, self.gamma)
        return (Work(Batch(columns, len(columns["rewards"]))),)


def feed_for_log(feed: Feed, name: str) -> Feed:
    """How an algorithm with this feed learns from a log, or why it cannot."""
    if isinstance(feed, Logged) or (isinstance(feed, Stream) and feed.one_step_episodes):
        return feed
    if not isinstance(feed, Replay):
        raise RequestError(
            f"{name} learns from its own actions only (its feed is "
            f"{type(feed).__name__.lower()}): it cannot learn from a log.",
            "try: --algo linucb, dqn or bc, then --init-from that run",
        )
    if feed.prioritized:
        raise RequestError(
            f"{name}: rows of a log are drawn uniformly, each once per pass over it: they have no "
            "priorities.",
            "try: --set prioritized=false",
        )
    return Logged(batch_size=feed.batch_size, gamma=feed.gamma, n_step=feed.n_step, wants_next=True)
