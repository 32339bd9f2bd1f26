"""Transitions read from a ring: what rows led to, how far they span, stacks of frames."""

from __future__ import annotations

from typing import Any

import numpy

from rlplug.batch.nested import map_leaves
from rlplug.feeds.formats import widener
from rlplug.feeds.ring import FINAL, TERMINATED, TRUNCATED, Index, Ring
from rlplug.spaces import ACTION_MASK

__all__ = ["Transitions"]


class Transitions:
    """Those that begin at rows of a ring, each spanning up to `n_step` steps.

    They stop where the episode ends, and at the newest step of their environment.
    """

    def __init__(self, ring: Ring, gamma: float, n_step: int) -> None:
        self._ring = ring
        self._gamma = gamma
        self._n_step = n_step
        self._widen_seen = widener(ring.setting.observation_space)
        self._widen_done = widener(ring.setting.action_space)

    def at(self, rows: Index, scale: Any = None) -> dict[str, Any]:
        """The columns of these rows; `scale` is applied to the reward of each step."""
        ring, gamma = self._ring, self._gamma
        flags = ring.flags.take(rows)
        rewards = ring.done["rewards"].take(rows)
        if scale is not None:
            rewards = scale(rewards)
        spans = 1
        if self._n_step > 1:
            spans, rewards, flags = self._lengthened(rows, rewards, flags, scale)
            discounts = (gamma**spans).astype(rewards.dtype)
        else:
            discounts = numpy.empty_like(rewards)
            discounts.fill(gamma)
        following = self._later(rows, spans)
        found = {
            "observations": self._stacked(rows),
            "next_observations": self._stacked(following),
            "actions": self._widen_done(_taken(ring.done["actions"], rows)),
            "rewards": rewards,
            "terminated": (flags & TERMINATED) != 0,
            "truncated": (flags & TRUNCATED) != 0,
            "discounts": discounts,
        }
        if ring.mask_is_seen:
            found[ACTION_MASK] = found["observations"][ACTION_MASK]
            found["next_action_mask"] = found["next_observations"][ACTION_MASK]
        elif ACTION_MASK in ring.kept:
            found[ACTION_MASK] = ring.kept[ACTION_MASK][rows]
            found["next_action_mask"] = ring.kept[ACTION_MASK][following]
        for name, room in ring.done.items():
            if name not in found:
                found[name] = _taken(room, rows)
        return found

    def _lengthened(
        self, rows: Index, rewards: Any, flags: Any, scale: Any
    ) -> tuple[Any, Any, Any]:
        """Steps taken, discounted sums of rewards, and how the last of the steps ended."""
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
            seen = ring.flags[at]
            going &= (seen & FINAL) == 0
            earned = ring.done["rewards"][at]
            earned = earned if scale is None else scale(earned)
            counted = numpy.where(going, self._gamma**step * earned, 0)
            rewards = rewards + counted.astype(rewards.dtype)
            spans += going
            flags = numpy.where(going, seen, flags)
            going &= ((seen & (TERMINATED | TRUNCATED)) == 0) & (at != newest)
        return spans, rewards, flags

    def _later(self, rows: Index, steps: Any) -> Index:
        """The rows so many steps later in the same environment."""
        ring = self._ring
        later: Index = rows + steps
        if ring.num_envs == 1:
            later %= ring.rows
        else:
            later -= (later // ring.rows > rows // ring.rows) * ring.rows
        return later

    def _stacked(self, rows: Index) -> Any:
        """Observations; of stacks the frames that lead to them, none from an earlier episode."""
        ring = self._ring
        kept = ring.kept["observations"]
        if ring.stack == 1:
            return self._widen_seen(_taken(kept, rows))
        frames = numpy.empty((len(rows), ring.stack), numpy.int64)
        frames[:, -1] = at = rows
        starts = rows - rows % ring.rows
        oldest = ring.starts[rows // ring.rows]
        begun = numpy.zeros(len(rows), bool)
        heads = ring.heads[rows // ring.rows]
        for back in range(1, ring.stack):
            before = starts + (at - starts - 1) % ring.rows
            # Before the very first row nothing was written yet.
            first = (heads < ring.rows) & (at == oldest)
            begun |= first | ((ring.flags[before] & FINAL) != 0)
            at = numpy.where(begun, at, before)
            frames[:, -1 - back] = at
        return self._widen_seen(map_leaves(kept, lambda leaf: leaf[frames]))


def _taken(kept: Any, rows: Index) -> Any:
    """These rows of whatever is kept."""
    return map_leaves(kept, lambda leaf: leaf.take(rows, axis=0))
