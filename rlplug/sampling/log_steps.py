"""Steps of logged episodes: where they end, what follows, and returns of several steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from numpy.typing import NDArray

from rlplug.batch.nested import tree_map
from rlplug.errors import RequestError
from rlplug.logs import LogRows

__all__ = ["ends_of", "episodes_of", "over_steps", "with_next"]


def ends_of(rows: LogRows, following: LogRows | None) -> dict[str, Any]:
    """Where episodes end; one that only changes its number was cut off."""
    count = len(rows)
    terminated = rows.get("terminated")
    truncated = rows.get("truncated")
    terminated = numpy.zeros(count, numpy.bool_) if terminated is None else terminated
    if truncated is None:
        truncated = numpy.zeros(count, numpy.bool_)
        episode = rows.get("episode")
        if episode is not None:
            after = numpy.append(episode[1:], -1 if following is None else following["episode"][0])
            truncated = (after != episode) & ~terminated
    return {"terminated": terminated, "truncated": truncated}


def with_next(columns: dict[str, Any], following: LogRows | None) -> dict[str, Any]:
    """The rows whose next observation is that of the row after them, or does not matter."""
    seen = columns["observations"]
    if isinstance(seen, Mapping):
        raise RequestError(
            "episodes of a bandit's observations have no next observations.",
            "try: leave data.episode, data.terminated and data.truncated out",
        )
    last = seen[-1:] if following is None else following["context"][:1]
    columns["next_observations"] = numpy.concatenate([seen[1:], last])
    usable = ~columns["truncated"]
    if following is None:
        usable[-1] &= columns["terminated"][-1]
    return {name: column[usable] for name, column in columns.items()}


def episodes_of(rows: LogRows, columns: Mapping[str, Any]) -> NDArray[Any]:
    """The number of each row's episode; without a column, ends tell them apart."""
    numbers = rows.get("episode")
    if numbers is not None:
        return numbers
    ended = columns["terminated"] | columns["truncated"]
    counted: NDArray[Any] = numpy.concatenate([[0], ended[:-1].cumsum()])
    return counted


def over_steps(columns: dict[str, Any], n_step: int, gamma: float) -> dict[str, Any]:
    """Transitions over up to `n_step` steps, with the `discounts` of what follows them.

    They stop at the end of their episode, and at the last row of it that is here. `episode` is left
    out.
    """
    columns = dict(columns)
    episode = columns.pop("episode")
    # Episodes of several environments may have been recorded by turns.
    order = numpy.argsort(episode, kind="stable")
    ended = columns["terminated"] | columns["truncated"]
    follows = numpy.append(numpy.diff(episode[order]) == 0, False) & ~ended[order]
    rewards = columns["rewards"][order].astype(numpy.float64)
    returns, last = rewards.copy(), numpy.arange(len(order))
    goes_on = numpy.ones(len(order), bool)
    for step in range(1, n_step):
        goes_on &= follows[last]
        last[goes_on] += 1
        returns[goes_on] += gamma**step * rewards[last[goes_on]]
    steps = last - numpy.arange(len(order)) + 1
    back = numpy.empty(len(order), int)
    back[order] = numpy.arange(len(order))
    at = order[last][back]
    for name in ("terminated", "truncated", "next_observations"):
        columns[name] = tree_map(lambda leaf: leaf[at], columns[name])
    columns["rewards"] = returns[back]
    columns["discounts"] = (gamma**steps)[back]
    return columns
