"""Stream: every transition is learned from once, in the order it came."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import ClassVar

import attrs

from rlplug.batch import Batch
from rlplug.batch.nested import copied, tree_map
from rlplug.envs.normalization import Normalization
from rlplug.feeds.feed import Experience, Feed, FeedSetting, OpenFeed, Work

__all__ = ["OpenStream", "Stream"]


@attrs.frozen(kw_only=True)
class Stream(Feed):
    """Hand each piece of experience to the learner once, then forget it."""

    takes_tensors: ClassVar[bool] = True
    steps_per_update: int = attrs.field(default=1, validator=attrs.validators.ge(1))
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
            columns["next_observations"] = experience.next_observations()
        stepped = experience.stepped
        if stepped is not None and not stepped.all():
            if not stepped.any():
                return ()
            columns = tree_map(itemgetter(stepped), columns)
        if self._normalization is not None:
            # The sampler absorbs the experience as it was.
            columns = dict(columns)
            self._normalization.apply(columns)
        # For streams of single steps, a tuple is cheaper than a generator.
        return (Work(Batch(columns, len(columns["rewards"]))),)
