"""Experience of several runners joined to that of one sampler with all their environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from rlplug.batch.nested import tree_map
from rlplug.feeds import Experience, ModuleExperience
from rlplug.feeds.feed import FinalObservations
from rlplug.spaces import ACTION_MASK

__all__ = ["join"]


def join(parts: Sequence[Experience]) -> Experience:
    """One experience, the environments of the first part before those of the second.

    All arrays are copies: those that came through Ray's object store cannot be written.
    """
    if isinstance(parts[0], ModuleExperience):
        return _join_modules([one for one in parts if isinstance(one, ModuleExperience)])
    parts = _equalised(parts)
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
        counts=_counts(parts),
        after_reset=_after_reset(parts),
        states=[
            tree_map(by_environment, *(one.states[index] for one in parts))
            for index in range(len(first.states))
        ],
        initial_state=first.initial_state,
    )


def _join_modules(parts: Sequence[ModuleExperience]) -> ModuleExperience:
    """The same of environments with several agents, module by module."""
    ids = dict.fromkeys(name for one in parts for name in (*one.by_module, *one.idle))
    by_module = {
        module_id: join([one.by_module.get(module_id) or one.idle[module_id] for one in parts])
        for module_id in ids
        if any(module_id in one.by_module for one in parts)
    }
    return ModuleExperience(
        {},
        steps=parts[0].steps,
        num_envs=sum(one.num_envs for one in parts),
        by_module=by_module,
        over=numpy.concatenate([one.over for one in parts], axis=1),
    )


def _equalised(parts: Sequence[Experience]) -> Sequence[Experience]:
    """The parts with equally many steps and the same columns, where some have fewer."""
    steps = max(one.steps for one in parts)
    columns = {name: column for one in parts for name, column in one.columns.items()}
    if all(one.steps == steps and one.columns.keys() == columns.keys() for one in parts):
        return parts
    longest = max(parts, key=lambda one: len(one.states))
    model = next(one for one in parts if one.columns)
    following = {name: column for one in parts for name, column in one.following.items()}
    return [_widened(one, steps, columns, following, longest, model) for one in parts]


def _widened(
    part: Experience,
    steps: int,
    columns: Mapping[str, Any],
    following: Mapping[str, Any],
    longest: Experience,
    model: Experience,
) -> Experience:
    """A part with so many steps, those beyond its own as in `Experience.counts`."""
    num_envs = part.num_envs

    def empty(name: str, rows: Any, example: Any) -> Any:
        # Without a mask, everything is allowed.
        fill = numpy.ones if name == ACTION_MASK else numpy.zeros
        return tree_map(lambda leaf: fill((*rows, *leaf.shape[1:]), leaf.dtype), example)

    def grown(name: str) -> Any:
        wide = empty(name, (steps, num_envs), columns[name])
        if name in part.columns:
            old = part.grid(part.columns[name])
            tree_map(lambda leaf, rows: leaf.__setitem__(slice(len(rows)), rows), wide, old)
        if name in part.following:
            after = slice(part.steps, None)
            tree_map(lambda leaf, now: leaf.__setitem__(after, now), wide, part.following[name])
        return tree_map(flat, wide)

    def flat(leaf: Any) -> Any:
        ordered = leaf.swapaxes(0, 1) if part.by_environment else leaf
        return ordered.reshape(steps * num_envs, *leaf.shape[2:])

    counts = numpy.full(num_envs, part.steps) if part.counts is None else part.counts
    return Experience(
        {name: grown(name) for name in columns},
        steps=steps,
        num_envs=num_envs,
        by_environment=part.by_environment,
        following={
            name: part.following.get(name, empty(name, (num_envs,), example))
            for name, example in following.items()
        },
        finals=part.finals,
        stepped=flat(numpy.arange(steps)[:, None] < counts),
        counts=counts,
        after_reset=part.after_reset,
        states=[
            *part.states,
            *(empty("", (num_envs,), one) for one in longest.states[len(part.states) :]),
        ],
        initial_state=model.initial_state,
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
    names = [name for name in found[0][1] if all(name in columns for _, columns in found)]

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


def _counts(parts: Sequence[Experience]) -> Any:
    if all(one.counts is None for one in parts):
        return None
    return numpy.concatenate(
        [numpy.full(one.num_envs, one.steps) if one.counts is None else one.counts for one in parts]
    )


def _after_reset(parts: Sequence[Experience]) -> Any:
    told = [one.after_reset for one in parts]
    if all(one is told[0] for one in told) and isinstance(told[0], bool):
        return told[0]
    return numpy.concatenate([numpy.broadcast_to(one.after_reset, one.num_envs) for one in parts])
