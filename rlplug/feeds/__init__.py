"""How experience becomes training batches: an algorithm describes it, the trainer makes it so."""

from rlplug.feeds.experience import Experience
from rlplug.feeds.feed import Feed, FeedSetting, OpenFeed, Work
from rlplug.feeds.replay import Replay
from rlplug.feeds.rollout import Rollout
from rlplug.feeds.stream import Stream

__all__ = ["Experience", "Feed", "FeedSetting", "OpenFeed", "Replay", "Rollout", "Stream", "Work"]
