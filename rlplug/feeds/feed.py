"""What all feeds share: a description that a run opens, and what the trainer asks of it then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import gymnasium

    from rlplug.batch import Batch
    from rlplug.envs.normalization import Normalization
    from rlplug.feeds.experience import Experience

__all__ = ["Feed", "FeedSetting", "OpenFeed", "Work"]


@attrs.frozen(kw_only=True)
class FeedSetting:
    """What a feed may need to know of the run that opens it."""

    observation_space: gymnasium.Space[Any]
    """Of one environment, before normalisation."""
    action_space: gymnasium.Space[Any]
    num_envs: int
    steps: int
    """Environment steps of the whole run."""
    seed: int
    double: bool = False
    """Whether the learner computes in float64."""
    has_memory: bool = False
    """Whether the module keeps a state from step to step."""
    frame_stack: int = 1
    """How many frames an observation is a stack of, the newest last."""
    normalization: Normalization | None = None


@dataclass(slots=True)
class Work:
    """One update to be made."""

    batch: Batch
    num_iters: int = 1
    minibatch_size: int = 0
    """Rows of a minibatch; 0: all at once."""


class OpenFeed:
    """A feed in a run: takes in experience and says what to learn from it."""

    steps_per_collect: int = 1
    """Steps of the vector environment that are taken at a time."""
    wants_next: bool = True
    """Whether it needs to know where steps led to."""
    by_environment: bool = False
    """Whether rows lie environment by environment instead of in the order of time."""
    state_interval: int = 0
    """Steps after which memory is noted inside episodes; 0: only where a collection begins."""

    def take(self, experience: Experience, step: int) -> Iterable[Work]:
        """The updates to make now, in order; each is drawn after the one before was made."""
        raise TypeError(f"{type(self).__name__} must define take")

    def learned(self, work: Work, rows: Mapping[str, Any]) -> None:
        """An update was made; `rows` are its per-row values with their `indices`."""

    def describe(self) -> str:
        """What it keeps and what that costs, in one line; empty if there is nothing to say."""
        return ""

    def get_state(self) -> dict[str, Any]:
        """All that the next batches depend on."""
        return {}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Go on from there."""


@attrs.frozen(kw_only=True)
class Feed:
    """A description of how experience is collected and turned into batches."""

    def open(self, setting: FeedSetting) -> OpenFeed:
        """Make it so, or refuse what cannot work."""
        raise TypeError(f"{type(self).__name__} must define open")
