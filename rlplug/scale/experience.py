"""Experience of several runners joined to that of one sampler with all their environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from rlplug.batch.nested import tree_map
from rlplug.feeds import Experience
from rlplug.feeds.feed import FinalObservations

__all__ = ["join"]


def join(parts: Sequence[Experience]) -> Experience:
    """One experience, the environments of the first part before those of the second.

    All arrays are copies: those that came through Ray's object store cannot be written.
    """
    first = parts[0]
    steps, counts = first.steps, [one.num_envs for one in parts]
    num_envs = sum(counts)

    def rows(*columns: Any) -> Any:
        if first.by_environment or steps == 1:
            return numpy.concatenate(columns)
        grids = [
            column.reshape(steps, count, *column.shape[1:])
            for column, count in zip(columns, counts, strict=True)
        ]
        joined = numpy.concatenate(grids, axis=1)
        return joined.reshape(steps * num_envs, *joined.shape[2:])

    def by_environment(*leaves: Any) -> Any:
        return numpy.concatenate(leaves)

    return Experience(
        {name: tree_map(rows, *(one.columns[name] for one in parts)) for name in first.columns},
        steps=steps,
        num_envs=num_envs,
        by_environment=first.by_environment,
        following={
            name: tree_map(by_environment, *(one.following[name] for one in parts))
            for name in first.following
        },
        finals=_finals(parts, num_envs),
        stepped=_stepped(parts, rows),
        after_reset=_after_reset(parts),
        states=[
            tree_map(by_environment, *(one.states[index] for one in parts))
            for index in range(len(first.states))
        ],
        initial_state=first.initial_state,
    )


def _finals(parts: Sequence[Experience], num_envs: int) -> FinalObservations | None:
    found, before = [], 0
    for one in parts:
        if one.finals is not None:
            times, envs = numpy.divmod(one.finals.indices, one.num_envs)
            found.append((times * num_envs + envs + before, one.finals.columns))
        before += one.num_envs
    if not found:
        return None
    indices = numpy.concatenate([one for one, _ in found])
    order = numpy.argsort(indices, kind="stable")
    names = found[0][1]

    def sorted_rows(*leaves: Any) -> Any:
        return numpy.concatenate(leaves)[order]

    columns: Mapping[str, Any] = {
        name: tree_map(sorted_rows, *(columns[name] for _, columns in found)) for name in names
    }
    return FinalObservations(indices[order], columns)


def _stepped(parts: Sequence[Experience], rows: Any) -> Any:
    if all(one.stepped is None for one in parts):
        return None
    return rows(
        *(
            numpy.ones(one.steps * one.num_envs, bool) if one.stepped is None else one.stepped
            for one in parts
        )
    )


def _after_reset(parts: Sequence[Experience]) -> Any:
    told = [one.after_reset for one in parts]
    if all(one is told[0] for one in told) and isinstance(told[0], bool):
        return told[0]
    return numpy.concatenate([numpy.broadcast_to(one.after_reset, one.num_envs) for one in parts])
