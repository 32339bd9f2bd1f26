"""The metrics that say how well a run goes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

__all__ = ["RETURN", "REWARD", "earned", "worded"]

REWARD = "rollout/reward_mean"
"""Of each step: the measure of bandits."""
RETURN = "rollout/return_mean"
"""Of each episode, where episodes have several steps."""


def earned(names: Collection[str]) -> str:
    """Which of the two says it: of an episode of several steps, a single one says little."""
    return RETURN if RETURN in names else REWARD


def worded(metrics: Mapping[str, float], words: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """The metrics that there are words for, in the order of the words."""
    for name, word in words.items():
        if name in metrics and (name != REWARD or earned(metrics) == REWARD):
            yield word, metrics[name]
