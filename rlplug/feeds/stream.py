"""Every transition is learned from once, in the order in which it came."""

from __future__ import annotations

import attrs

from rlplug.feeds.feed import Feed

__all__ = ["Stream"]


@attrs.frozen(kw_only=True)
class Stream(Feed):
    """Hand each piece of experience to the learner once, then forget it."""

    steps_per_update: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Steps of the vector environment that make one batch."""
    one_step_episodes: bool = False
    """For bandits: longer episodes are refused, and no `next_observations` are kept."""
