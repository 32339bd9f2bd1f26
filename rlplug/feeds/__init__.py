"""Feeds: how experience becomes training batches."""

from rlplug.feeds.feed import Experience, Feed, FeedSetting, FinalObservations, OpenFeed, Work
from rlplug.feeds.logged import Logged
from rlplug.feeds.replay import Replay
from rlplug.feeds.rollout import Rollout
from rlplug.feeds.stream import Stream

__all__ = [
    "Experience",
    "Feed",
    "FeedSetting",
    "FinalObservations",
    "Logged",
    "OpenFeed",
    "Replay",
    "Rollout",
    "Stream",
    "Work",
]
