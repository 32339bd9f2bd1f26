"""One agent's stretch of experience, complete or cut, and how several become a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy

from rlplug.batch.batch import Batch
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


def batches_of(episodes: Sequence[Episode]) -> dict[str, Batch]:
    """One batch per module id, each episode a fragment."""
    if not episodes:
        raise RequestError("there are no episodes to learn from.")
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if len(episode) == 0:
            raise RequestError(f"an episode of module {episode.module_id!r} has no steps.")
        groups.setdefault(episode.module_id, []).append(episode)
    return {module_id: _batch(group) for module_id, group in groups.items()}


def _batch(episodes: Sequence[Episode]) -> Batch:
    stops = numpy.cumsum([len(episode) for episode in episodes])
    starts = numpy.concatenate(([0], stops[:-1]))
    columns: dict[str, Any] = {
        "observations": _joined([episode.observations for episode in episodes]),
        "next_observations": _joined([_next(episode) for episode in episodes]),
        "actions": _joined([episode.actions for episode in episodes]),
        "rewards": _joined([episode.rewards for episode in episodes]),
        "terminated": _at_ends(stops, [episode.terminated for episode in episodes]),
        "truncated": _at_ends(stops, [episode.truncated for episode in episodes]),
        "fragments": numpy.stack((starts, stops), axis=1),
        "final_observations": _stacked([episode.final_observation for episode in episodes]),
    }
    names = list(episodes[0].extras)
    for episode in episodes:
        if episode.extras.keys() != episodes[0].extras.keys():
            raise RequestError(
                f"the episodes of module {episode.module_id!r} have different extras: "
                f"{names} and {list(episode.extras)}.",
                "give all of them the same columns",
            )
    for name in names:
        columns[name] = _joined([episode.extras[name] for episode in episodes])
    states = [episode.state for episode in episodes if episode.state is not None]
    if len(states) not in (0, len(episodes)):
        raise RequestError(
            f"{len(states)} of {len(episodes)} episodes have a state.", "give it to all or none"
        )
    if states:
        columns["state"] = _stacked(states)
    batch = Batch(columns)
    batch.check()
    return batch


def _next(episode: Episode) -> Any:
    def shifted(column: Any, final: Any) -> Any:
        if isinstance(column, Mapping):
            return {name: shifted(part, final[name]) for name, part in column.items()}
        if isinstance(column, tuple):
            return tuple(shifted(part, end) for part, end in zip(column, final, strict=True))
        rows = numpy.asarray(column)
        return numpy.concatenate((rows[1:], numpy.asarray(final, rows.dtype)[None]))

    return shifted(episode.observations, episode.final_observation)


def _at_ends(stops: Any, flags: Sequence[bool]) -> Any:
    column = numpy.zeros(int(stops[-1]), dtype=bool)
    column[stops - 1] = flags
    return column


def _joined(parts: Sequence[Any]) -> Any:
    return _combined(parts, numpy.concatenate)


def _stacked(parts: Sequence[Any]) -> Any:
    return _combined(parts, numpy.stack)


def _combined(parts: Sequence[Any], how: Any) -> Any:
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: _combined([part[name] for part in parts], how) for name in first}
    if isinstance(first, tuple):
        return tuple(_combined(column, how) for column in zip(*parts, strict=True))
    return how([numpy.asarray(part) for part in parts])
