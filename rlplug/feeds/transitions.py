"""Transitions read from a ring buffer: next observations, n-step returns, frame stacks."""

from __future__ import annotations

from typing import Any

import numpy

from rlplug.batch.nested import tree_map
from rlplug.feeds.allocation import to_indices
from rlplug.feeds.feed import Index
from rlplug.feeds.ring import FINAL, TERMINATED, TRUNCATED, RingBuffer
from rlplug.spaces import ACTION_MASK

__all__ = ["Transitions"]


class Transitions:
    """Transitions of up to `n_step` steps; they stop at ends of episodes and at the newest row."""

    def __init__(self, ring: RingBuffer, gamma: float, n_step: int) -> None:
        self._ring = ring
        self._gamma = gamma
        self._n_step = n_step
        self._convert_observations = to_indices(ring.setting.observation_space)
        self._convert_actions = to_indices(ring.setting.action_space)

    def at(self, rows: Index, scale: Any = None) -> dict[str, Any]:
        """The columns of the transitions that begin at these rows; `scale` maps rewards."""
        ring, gamma = self._ring, self._gamma
        flags = ring.flags.take(rows)
        rewards = ring.acted["rewards"].take(rows)
        if scale is not None:
            rewards = scale(rewards)
        spans = 1
        if self._n_step > 1:
            spans, rewards, flags = self._n_step_returns(rows, rewards, flags, scale)
            discounts = (gamma**spans).astype(rewards.dtype)
        else:
            discounts = numpy.empty_like(rewards)
            discounts.fill(gamma)
        following = self._later(rows, spans)
        columns = {
            "observations": self._observations(rows),
            "next_observations": self._observations(following),
            "actions": self._convert_actions(_take(ring.acted["actions"], rows)),
            "rewards": rewards,
            "terminated": (flags & TERMINATED) != 0,
            "truncated": (flags & TRUNCATED) != 0,
            "discounts": discounts,
        }
        if ring.mask_is_observed:
            columns[ACTION_MASK] = columns["observations"][ACTION_MASK]
            columns["next_action_mask"] = columns["next_observations"][ACTION_MASK]
        elif ACTION_MASK in ring.observed:
            columns[ACTION_MASK] = ring.observed[ACTION_MASK][rows]
            columns["next_action_mask"] = ring.observed[ACTION_MASK][following]
        for name, column in ring.acted.items():
            if name not in columns:
                columns[name] = _take(column, rows)
        return columns

    def _n_step_returns(
        self, rows: Index, rewards: Any, flags: Any, scale: Any
    ) -> tuple[Any, Any, Any]:
        """Lengths in steps, discounted sums of rewards, and flags of the last steps."""
        ring = self._ring
        spans = numpy.ones(len(rows), numpy.int64)
        envs = rows // ring.rows
        newest = ring.starts[envs] + (ring.heads[envs] - 1) % ring.rows
        going = ((flags & (TERMINATED | TRUNCATED)) == 0) & (rows != newest)
        at = rows
        for step in range(1, self._n_step):
            if not numpy.count_nonzero(going):
                break
            at = self._later(at, 1)
            later_flags = ring.flags[at]
            going &= (later_flags & FINAL) == 0
            earned = ring.acted["rewards"][at]
            earned = earned if scale is None else scale(earned)
            counted = numpy.where(going, self._gamma**step * earned, 0)
            rewards = rewards + counted.astype(rewards.dtype)
            spans += going
            flags = numpy.where(going, later_flags, flags)
            going &= ((later_flags & (TERMINATED | TRUNCATED)) == 0) & (at != newest)
        return spans, rewards, flags

    def _later(self, rows: Index, steps: Any) -> Index:
        """The rows so many steps later in the same environment's ring."""
        ring = self._ring
        later: Index = rows + steps
        if ring.num_envs == 1:
            later %= ring.rows
        else:
            later -= (later // ring.rows > rows // ring.rows) * ring.rows
        return later

    def _observations(self, rows: Index) -> Any:
        """Observations; for frame stacks, without frames of an earlier episode."""
        ring = self._ring
        stored = ring.observed["observations"]
        if ring.stack == 1:
            return self._convert_observations(_take(stored, rows))
        frames = numpy.empty((len(rows), ring.stack), numpy.int64)
        frames[:, -1] = at = rows
        starts = rows - rows % ring.rows
        oldest = ring.starts[rows // ring.rows]
        started = numpy.zeros(len(rows), bool)
        heads = ring.heads[rows // ring.rows]
        for back in range(1, ring.stack):
            before = starts + (at - starts - 1) % ring.rows
            # Before the very first row nothing was written yet.
            first = (heads < ring.rows) & (at == oldest)
            started |= first | ((ring.flags[before] & FINAL) != 0)
            at = numpy.where(started, at, before)
            frames[:, -1 - back] = at
        return self._convert_observations(tree_map(lambda leaf: leaf[frames], stored))


def _take(stored: Any, rows: Index) -> Any:
    """These rows of stored arrays."""
    return tree_map(lambda leaf: leaf.take(rows, axis=0), stored)
