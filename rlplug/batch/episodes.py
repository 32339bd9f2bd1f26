"""One agent's stretch of experience, complete or cut, and how several become a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy

from rlplug.batch.batch import Batch
from rlplug.batch.nested import to_arrays, tree_map
from rlplug.errors import RequestError

__all__ = ["DEFAULT_MODULE", "Episode", "batches_of"]

DEFAULT_MODULE = "default"
"""The id of the only module of a run that has one."""


@attrs.frozen(kw_only=True, eq=False)
class Episode:
    """Steps in the order in which they were taken, and the observation after the last of them."""

    observations: Any
    """One per step; nested like the observation space."""
    final_observation: Any
    """What was seen after the last step: values of cut and truncated episodes need it."""
    actions: Any
    rewards: Any
    """One number per step."""
    terminated: bool = False
    """Whether it ended in a terminal state."""
    truncated: bool = False
    """Whether the environment cut it off, by a time limit. Neither: it goes on elsewhere."""
    extras: Mapping[str, Any] = attrs.field(factory=dict)
    """Other columns with one row per step: `log_prob`, `action_mask`, …"""
    state: Mapping[str, Any] | None = None
    """The state of a module with memory before the first step."""
    module_id: str = DEFAULT_MODULE

    def __len__(self) -> int:
        return len(self.rewards)


def batches_of(episodes: Iterable[Episode]) -> dict[str, Batch]:
    """One batch per module id, each episode a fragment."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if len(episode) == 0:
            raise RequestError(f"an episode of module {episode.module_id!r} has no steps.")
        groups.setdefault(episode.module_id, []).append(episode)
    if not groups:
        raise RequestError("there are no episodes to learn from.")
    return {module_id: _batch(group) for module_id, group in groups.items()}


def _batch(episodes: list[Episode]) -> Batch:
    parts = {(frozenset(episode.extras), episode.state is None) for episode in episodes}
    if len(parts) > 1:
        raise RequestError(
            f"the episodes of module {episodes[0].module_id!r} differ in their extras, or in "
            "whether they have a state.",
            "give all of them the same",
        )
    stops = numpy.cumsum([len(episode) for episode in episodes])
    starts = numpy.concatenate(([0], stops[:-1]))
    steps = [_arrays(_steps(episode)) for episode in episodes]
    finals = [_arrays(episode.final_observation) for episode in episodes]
    columns = _combined(numpy.concatenate, steps)
    following = [
        tree_map(_next, part["observations"], final)
        for part, final in zip(steps, finals, strict=True)
    ]
    columns["next_observations"] = _combined(numpy.concatenate, following)
    columns["final_observations"] = _combined(numpy.stack, finals)
    for name in ("terminated", "truncated"):
        columns[name] = numpy.zeros(int(stops[-1]), dtype=bool)
        columns[name][stops - 1] = [getattr(episode, name) for episode in episodes]
    columns["fragments"] = numpy.stack((starts, stops), axis=1)
    if episodes[0].state is not None:
        columns["state"] = _combined(numpy.stack, [_arrays(episode.state) for episode in episodes])
    batch = Batch(columns)
    batch.check()
    return batch


def _steps(episode: Episode) -> dict[str, Any]:
    """What has one row per step."""
    return {
        "observations": episode.observations,
        "actions": episode.actions,
        "rewards": episode.rewards,
        **episode.extras,
    }


def _next(observations: Any, final: Any) -> Any:
    return numpy.concatenate((observations[1:], final.astype(observations.dtype)[None]))


def _combined(how: Any, parts: list[Any]) -> Any:
    return tree_map(lambda *leaves: how(leaves), *parts)


def _arrays(column: Any) -> Any:
    return tree_map(numpy.asarray, to_arrays(column))
