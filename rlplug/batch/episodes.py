"""One agent's stretch of experience, complete or cut, and how several become a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import numpy

from rlplug.batch.batch import Batch
from rlplug.batch.nested import to_arrays
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
    terminated: bool = attrs.field(default=False)
    """Whether it ended in a terminal state."""
    truncated: bool = attrs.field(default=False)
    """Whether the environment cut it off, by a time limit. Neither: it goes on elsewhere."""
    extras: Mapping[str, Any] = attrs.field(factory=dict)
    """Other columns with one row per step: `log_prob`, `action_mask`, …"""
    state: Mapping[str, Any] | None = None
    """The state of a module with memory before the first step."""
    module_id: str = DEFAULT_MODULE

    @terminated.validator
    @truncated.validator
    def _check_end(self, attribute: Any, value: Any) -> None:
        is_flag = isinstance(value, bool) or (
            not getattr(value, "shape", True) and str(value.dtype) in ("bool", "torch.bool")
        )
        if not is_flag:
            raise RequestError(
                f"{attribute.name!r} of an episode of module {self.module_id!r} is {value!r}, not "
                "a boolean.",
                f"try: {attribute.name}=True",
            )

    def __len__(self) -> int:
        return len(self.rewards)


def batches_of(episodes: Sequence[Episode]) -> dict[str, Batch]:
    """One batch per module id, each episode a fragment."""
    if isinstance(episodes, Episode) or not isinstance(episodes, Iterable):
        raise RequestError(
            f"episodes is a {type(episodes).__name__}, not a list of Episodes.", "try: [episode]"
        )
    if not episodes:
        raise RequestError("there are no episodes to learn from.")
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if not isinstance(episode, Episode):
            raise RequestError(
                f"episodes has a {type(episode).__name__}, not an Episode.",
                "try: Episode(observations=…, final_observation=…, actions=…, rewards=…)",
            )
        with _naming("rewards", episode.module_id):
            if _array(episode.rewards).ndim != 1:
                raise ValueError(f"shape {numpy.shape(episode.rewards)}, expected one dimension")
        if len(episode) == 0:
            raise RequestError(f"an episode of module {episode.module_id!r} has no steps.")
        groups.setdefault(episode.module_id, []).append(episode)
    return {module_id: _batch(group) for module_id, group in groups.items()}


def _batch(episodes: Sequence[Episode]) -> Batch:
    stops = numpy.cumsum([len(episode) for episode in episodes])
    starts = numpy.concatenate(([0], stops[:-1]))
    module_id = episodes[0].module_id
    columns: dict[str, Any] = {}
    for name in ("observations", "actions", "rewards"):
        with _naming(name, module_id):
            columns[name] = _joined([getattr(episode, name) for episode in episodes])
    with _naming("final_observation", module_id):
        columns["next_observations"] = _joined([_next(episode) for episode in episodes])
        columns["final_observations"] = _stacked(
            [episode.final_observation for episode in episodes]
        )
    columns["terminated"] = _at_ends(stops, [episode.terminated for episode in episodes])
    columns["truncated"] = _at_ends(stops, [episode.truncated for episode in episodes])
    columns["fragments"] = numpy.stack((starts, stops), axis=1)
    names = list(episodes[0].extras)
    for episode in episodes:
        if episode.extras.keys() != episodes[0].extras.keys():
            raise RequestError(
                f"the episodes of module {episode.module_id!r} have different extras: "
                f"{names} and {list(episode.extras)}.",
                "give all of them the same columns",
            )
    for name in names:
        with _naming(name, module_id):
            columns[name] = _joined([episode.extras[name] for episode in episodes])
    states = [episode.state for episode in episodes if episode.state is not None]
    if len(states) not in (0, len(episodes)):
        raise RequestError(
            f"{len(states)} of {len(episodes)} episodes have a state.", "give it to all or none"
        )
    if states:
        with _naming("state", module_id):
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
        rows, last = _array(column), _array(final)
        if last.dtype.kind not in "biufc" or last.shape != rows.shape[1:]:
            found = repr(final) if final is None else f"{last.dtype} of shape {last.shape}"
            raise ValueError(f"{found}, where each step has shape {rows.shape[1:]}")
        return numpy.concatenate((rows[1:], last.astype(rows.dtype)[None]))

    return shifted(episode.observations, episode.final_observation)


def _at_ends(stops: Any, flags: Sequence[bool]) -> Any:
    column = numpy.zeros(int(stops[-1]), dtype=bool)
    column[stops - 1] = [bool(flag) for flag in flags]
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
    return how([_array(part) for part in parts])


def _array(part: Any) -> Any:
    return numpy.asarray(to_arrays(part))


@contextmanager
def _naming(field: str, module_id: str) -> Iterator[None]:
    """Refuse by name what NumPy makes no column of."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(
            f"{field!r} of an episode of module {module_id!r} cannot be a column: {error}",
            "give one value per step; of the final observation and the state, one for the episode",
        ) from error
