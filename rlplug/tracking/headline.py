"""The numbers of a run that its progress shows, and the line above them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlplug.quantities import format_number
from rlplug.review.record import RETURN, REWARD
from rlplug.tracking.summary import labeled

if TYPE_CHECKING:
    from rlplug.hooks.events import RunInfo

__all__ = ["headline", "title"]

_HEADLINES = {
    RETURN: "return",
    REWARD: "reward",
    "rollout/regret_mean": "regret",
    "data/reward_mean": "logged reward",
    "eval/return_mean": "eval",
}
"""Metric → label."""


def headline(metrics: Mapping[str, float]) -> list[str]:
    """`reward 0.91`, `regret 0.02`: the headline metrics."""
    return [f"{word} {format_number(value)}" for word, value in labeled(metrics, _HEADLINES)]


def title(run: RunInfo) -> str:
    """What runs where, and how long."""
    names = " + ".join(one.name for one in run.participants)
    title = f"{names} on {run.environment}, {run.steps:,} {run.unit}, seed {run.config.run.seed}"
    resumed = f", resumed at step {run.step:,}" if run.resumed else ""
    # Enough of the id for `rlplug resume`, should the process be killed.
    return f"{title}, run {run.run_id[:8]}{resumed}"
