"""A learner in the process of a Ray actor."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rlplug.scale.launcher import Place

__all__ = ["LearnerActor"]


class LearnerActor:
    """Takes part in a run as any other learner but the first does."""

    def follow(self, place: Mapping[str, Any], path: Sequence[str]) -> int:
        """Take part until the first learner ends the run; returns the exit code."""
        # On the machine of the run, what its process finds is found in the same place.
        sys.path.extend(one for one in path if one not in sys.path)
        from rlplug.runs.learners.follower import follow

        return follow(Place(**place))
