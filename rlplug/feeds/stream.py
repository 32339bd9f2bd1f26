"""Every transition is learned from once, in the order in which it came."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from rlplug.batch import Batch
from rlplug.batch.nested import copied, map_leaves
from rlplug.envs.normalization import Normalization
from rlplug.feeds.experience import Experience
from rlplug.feeds.feed import Feed, FeedSetting, OpenFeed, Work

__all__ = ["OpenStream", "Stream"]


@attrs.frozen(kw_only=True)
class Stream(Feed):
    """Hand each piece of experience to the learner once, then forget it."""

    steps_per_update: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Steps of the vector environment that make one batch."""
    one_step_episodes: bool = False
    """For bandits: longer episodes are refused, and no `next_observations` are kept."""

    def open(self, setting: FeedSetting) -> OpenStream:
        """There is nothing to prepare."""
        return OpenStream(self, setting.normalization)


class OpenStream(OpenFeed):
    """Makes each experience one batch."""

    def __init__(self, described: Stream, normalization: Normalization | None) -> None:
        self.steps_per_collect = described.steps_per_update
        self.wants_next = not described.one_step_episodes
        self._normalization = normalization

    def take(self, experience: Experience, step: int) -> Iterable[Work]:
        """One update with all of it."""
        columns = experience.columns
        if experience.steps > 1:
            # What the sampler writes again must not change in somebody's hands.
            columns = {name: map_leaves(column, copied) for name, column in columns.items()}
        if self.wants_next:
            columns["next_observations"] = experience.next_observations()
        stepped = experience.stepped
        if stepped is not None and not stepped.all():
            if not stepped.any():
                return ()
            columns = {
                name: map_leaves(column, lambda leaf: leaf[stepped])
                for name, column in columns.items()
            }
        if self._normalization is not None:
            # The sampler absorbs the experience afterwards, and must find it as it was.
            columns = dict(columns)
            self._normalization.apply(columns)
        # A stream of single steps comes here with each: a tuple is cheaper than a generator.
        return (Work(Batch(columns)),)
