"""The metrics that say how well a run goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["RETURN", "REWARD", "worded"]

REWARD = "rollout/reward_mean"
"""Of each step: the measure of bandits."""
RETURN = "rollout/return_mean"
"""Of each episode, where episodes have several steps."""


def worded(metrics: Mapping[str, float], words: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """The metrics that there are words for, in the order of the words."""
    for name, word in words.items():
        # Of an episode of several steps, what a single one earned says little.
        if name in metrics and not (name == REWARD and RETURN in metrics):
            yield word, metrics[name]
