"""Options: typed, documented, strictly checked, and traceable to where each came from."""

from rlplug.config.option import above, at_least, at_most, below, between, not_empty, one_of, option
from rlplug.config.schedule import Schedule

__all__ = [
    "Schedule",
    "above",
    "at_least",
    "at_most",
    "below",
    "between",
    "not_empty",
    "one_of",
    "option",
]
