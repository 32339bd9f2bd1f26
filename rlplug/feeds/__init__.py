"""How experience becomes training batches: an algorithm describes it, the trainer makes it so."""

from rlplug.feeds.feed import Feed
from rlplug.feeds.stream import Stream

__all__ = ["Feed", "Stream"]
