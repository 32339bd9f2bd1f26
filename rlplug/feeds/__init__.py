"""Feeds: how experience becomes training batches."""

from rlplug.feeds.by_module import ModuleExperience, ModuleFeeds
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
    "ModuleExperience",
    "ModuleFeeds",
    "OpenFeed",
    "Replay",
    "Rollout",
    "Stream",
    "Work",
]
