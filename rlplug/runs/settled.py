"""Options whose default depends on the rest of the run."""

from __future__ import annotations

from typing import Any

import attrs

from rlplug.config.sections import RunConfig
from rlplug.config.sources import Layers

__all__ = ["settle_evaluation"]

_SHARE = 10


def settle_evaluation(config: RunConfig, feed: Any, said: Layers) -> RunConfig:
    """How often a run is evaluated if nobody says: ten times, but not where episodes are one step.

    A bandit pays its reward at once and is measured by regret: what it earns while it learns is the
    result, and greedy episodes beside it would only cost time. Whoever sets any option of
    `[evaluation]` has asked for it.
    """
    section = config.evaluation
    asked = [path[1] for path in said.origins if path[0] == "evaluation" and len(path) > 1]
    if getattr(feed, "one_step_episodes", False) and not asked:
        said.put(("evaluation", "episodes"), 0, "default for episodes of one step")
        section = attrs.evolve(section, episodes=0)
    elif "every" not in asked:
        every = max(config.run.steps // _SHARE, 1)
        said.put(("evaluation", "every"), every, "a tenth of run.steps")
        section = attrs.evolve(section, every=every)
    return attrs.evolve(config, evaluation=section)
