"""Feeds: how experience becomes training batches."""

from rlplug.feeds.feed import (
    Experience,
    Feed,
    FeedSetting,
    FinalObservations,
    ModuleExperience,
    ModuleFeeds,
    OpenFeed,
    Work,
)
from rlplug.feeds.replay import Replay
from rlplug.feeds.rollout import Rollout
from rlplug.feeds.stream import Logged, Stream

__all__ = [
    "Experience",
    "Feed",
    "FeedSetting",
    "FinalObservations",
    "Logged",
    "ModuleExperience",
    "ModuleFeeds",
    "OpenFeed",
    "Replay",
    "Rollout",
    "Stream",
    "Work",
]
