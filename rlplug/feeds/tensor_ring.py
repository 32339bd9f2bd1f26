"""Ring buffer of tensors: transitions of a vector environment, stored and drawn on its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.batch.nested import first_leaf, to_arrays, to_tensors, tree_map
from rlplug.config import Schedule
from rlplug.errors import RequestError
from rlplug.feeds.allocation import row_bytes
from rlplug.feeds.feed import Experience, FeedSetting
from rlplug.spaces import ACTION_MASK

__all__ = ["TensorPriorities", "TensorRing"]

_BLOCK_BYTES = 2**22
"""About how much of a buffer is saved together."""

_FINAL_MASK = "final_action_mask"
_SPARE = 64
"""Draws beyond four times those wanted, where some rows only reset."""


class TensorRing:
    """All environments write one row per step, the oldest ones are overwritten.

    A row is numbered `slot * num_envs + environment`. Where environments reset in the same step,
    rows hold their next observations; where they reset in the next, those are in the next slot, and
    rows that only reset are not drawn. The slot behind the newest row holds what is acted on next.
    Nothing here waits for the device.
    """

    def __init__(self, setting: FeedSetting, size: int, gamma: float, n_step: int) -> None:
        assert setting.device is not None
        self.num_envs = setting.num_envs
        self.live = max(size // setting.num_envs, 2)
        """Slots that can be drawn from."""
        self.rows = self.live + 1
        self.head = 0
        """How many slots were written so far."""
        self.columns: dict[str, Any] = {}
        """Of shape (rows, num_envs, …)."""
        self._device = setting.device
        self._double = setting.double
        self._spaces = setting.observation_space, setting.action_space
        self._gamma, self._n_step = gamma, n_step
        row = max(self.bytes_needed(setting, size) // self.rows, 1)
        self.block = max(min(_BLOCK_BYTES // row, self.rows // 16), 16)

    @staticmethod
    def bytes_needed(setting: FeedSetting, size: int) -> int:
        """Memory of a buffer of this size: observations and next observations."""
        row = 2 * row_bytes(setting.observation_space, double=setting.double)
        row += row_bytes(setting.action_space, double=setting.double) + 8 + 3
        return row * setting.num_envs * (max(size // setting.num_envs, 2) + 1)

    # -- writing -------------------------------------------------------------------------------

    def add(self, experience: Experience) -> int:
        """Store experience; returns how many slots were written before."""
        if experience.after_reset is not False and self.head:
            self._cut()
        before, steps = self.head, experience.steps
        columns = {name: experience.grid(column) for name, column in experience.columns.items()}
        columns["ended"] = experience.ended()
        if experience.ends is not None:
            columns["next"] = experience.next_grid("observations")
            if ACTION_MASK in columns:
                # A final state without a mask may be bootstrapped from the value of any action.
                following = experience.next_grid(ACTION_MASK)
                columns[_FINAL_MASK] = following | columns["ended"].unsqueeze(-1)
        if experience.stepped is not None:
            columns["valid"] = experience.grid(experience.stepped)
        for name, column in columns.items():
            self._write(name, column, steps)
        for name, column in experience.following.items():
            stored = self.columns[name]
            tree_map(
                lambda leaf, part: leaf[(before + steps) % self.rows].copy_(part), stored, column
            )
        self.head = before + steps
        return before

    def changed(self, before: int) -> tuple[Tensor, Tensor]:
        """Rows written since then, and rows that cannot be drawn any more."""
        first = max(before, self.head - self.live)
        return self._between(first, self.head), self._between(self.head, self.head + 1)

    @property
    def valid(self) -> Tensor | None:
        """Which rows are transitions; None if all are that were written."""
        found = self.columns.get("valid")
        return None if found is None else found.reshape(-1)

    def _cut(self) -> None:
        """The environments were reset: the newest row does not lead to the next one."""
        newest = (self.head - 1) % self.rows
        self.columns["ended"][newest] = True
        if "valid" in self.columns:
            # Its next observation is in the slot behind it, which is kept and not drawn.
            self.columns["valid"][self.head % self.rows] = False
            self.head += 1

    def _write(self, name: str, column: Any, steps: int) -> None:
        stored = self.columns.get(name)
        if stored is None:
            stored = self.columns[name] = tree_map(self._allocated, column)
        kept = min(steps, self.rows)
        first, place = steps - kept, (self.head + steps - kept) % self.rows
        until_end = min(kept, self.rows - place)

        def write(leaf: Tensor, part: Tensor) -> None:
            leaf[place : place + until_end] = part[first : first + until_end].to(leaf.dtype)
            if until_end < kept:
                leaf[: kept - until_end] = part[first + until_end :].to(leaf.dtype)

        tree_map(write, stored, column)

    def _allocated(self, leaf: Tensor) -> Tensor:
        dtype = leaf.dtype
        if dtype == torch.float64 and not self._double:
            dtype = torch.float32
        shape = self.rows, self.num_envs, *leaf.shape[2:]
        try:
            return torch.zeros(shape, dtype=dtype, device=self._device)
        except (RuntimeError, MemoryError) as error:
            raise RequestError(
                f"there is no memory on {self._device} for the replay buffer.",
                "try: a smaller buffer_size",
            ) from error

    def _between(self, first: int, last: int) -> Tensor:
        slots = torch.arange(first, last, device=self._device) % self.rows
        envs = torch.arange(self.num_envs, device=self._device)
        return (slots.unsqueeze(1) * self.num_envs + envs).reshape(-1)

    # -- drawing -------------------------------------------------------------------------------

    def holds_any(self) -> bool:
        """Whether there is a transition to draw."""
        return self.head > 0

    def draw(self, random: torch.Generator, count: int) -> Tensor:
        """Rows that are transitions, each with the same probability."""
        valid = self.valid
        if valid is None:
            return self._draw_live(random, count)
        # At most every second row only resets: so many draws hold enough others.
        rows = self._draw_live(random, 4 * count + _SPARE)
        return rows[(~valid[rows]).to(torch.uint8).argsort(stable=True)[:count]]

    def _draw_live(self, random: torch.Generator, count: int) -> Tensor:
        live = min(self.head, self.live)
        drawn = torch.randint(live * self.num_envs, (count,), generator=random, device=self._device)
        oldest = (self.head - live) % self.rows
        return (drawn + oldest * self.num_envs) % (self.rows * self.num_envs)

    def at(self, rows: Tensor, scale: Any = None) -> dict[str, Any]:
        """The columns of the transitions that begin at these rows; `scale` maps rewards."""
        rewards = self._take("rewards", rows)
        rewards = rewards if scale is None else scale(rewards)
        discounts, last = torch.full_like(rewards, self._gamma), rows
        if self._n_step > 1:
            rewards, discounts, last = self._n_step_returns(rows, rewards, scale)
        after = self._later(last, 1)
        following = self._take("next", last) if "next" in self.columns else None
        columns = {
            "observations": _to_indices(self._spaces[0], self._take("observations", rows)),
            "next_observations": _to_indices(
                self._spaces[0],
                self._take("observations", after) if following is None else following,
            ),
            "actions": _to_indices(self._spaces[1], self._take("actions", rows)),
            "rewards": rewards,
            "terminated": self._take("terminated", last),
            "truncated": self._take("truncated", last),
            "discounts": discounts,
        }
        if ACTION_MASK in self.columns:
            columns[ACTION_MASK] = self._take(ACTION_MASK, rows)
            final = self._take(_FINAL_MASK, last) if _FINAL_MASK in self.columns else None
            columns["next_action_mask"] = self._take(ACTION_MASK, after) if final is None else final
        for name in self.columns.keys() - columns.keys() - _OWN:
            columns[name] = self._take(name, rows)
        return columns

    def _n_step_returns(self, rows: Tensor, rewards: Tensor, scale: Any) -> tuple[Tensor, ...]:
        """Discounted sums of rewards, discounts of what follows, and the last rows."""
        newest = (self.head - 1) % self.rows
        left = (newest - rows // self.num_envs) % self.rows
        going = ~self._take("ended", rows) & (left > 0)
        discounts, at, last = torch.full_like(rewards, self._gamma), rows, rows
        for step in range(1, self._n_step):
            at = self._later(at, 1)
            earned = self._take("rewards", at)
            earned = earned if scale is None else scale(earned)
            rewards = rewards + torch.where(going, self._gamma**step * earned, 0.0)
            discounts = torch.where(going, discounts * self._gamma, discounts)
            last = torch.where(going, at, last)
            going = going & ~self._take("ended", at) & (left > step)
        return rewards, discounts, last

    def _later(self, rows: Tensor, steps: int) -> Tensor:
        return (rows + steps * self.num_envs) % (self.rows * self.num_envs)

    def _take(self, name: str, rows: Tensor) -> Any:
        return tree_map(lambda leaf: leaf.flatten(0, 1)[rows], self.columns[name])

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """All rows that are kept."""
        ((first, newest),) = self.kept()
        return {"rows": self.rows, "head": self.head, "kept": self.copy_rows(0, first, newest + 1)}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.restart([saved["head"]], saved["rows"])
        self.put_rows(0, self.kept()[0][0], saved["kept"])

    def kept(self) -> list[tuple[int, int]]:
        """The oldest and the newest slot, as of one environment; of the newest, the observation."""
        return [(max(self.head - self.live, 0), self.head)]

    def copy_rows(self, env: int, first: int, stop: int) -> dict[str, Any]:
        """A copy of some slots as arrays; of what is acted on next, observation and mask alone."""
        slots = torch.arange(first, stop, device=self._device) % self.rows
        copies: dict[str, Any] = {}
        for name, column in self.columns.items():
            copies[name] = tree_map(lambda leaf: to_arrays(leaf[slots].cpu()), column)
            if stop > self.head and name not in ("observations", ACTION_MASK):
                tree_map(lambda leaf: leaf[-1:].fill(0), copies[name])
        return copies

    def put_rows(self, env: int, first: int, columns: Mapping[str, Any]) -> None:
        """Put a copy back."""
        count = len(first_leaf(columns))
        slots = torch.arange(first, first + count, device=self._device) % self.rows
        for name, column in columns.items():
            tensors = tree_map(lambda leaf: leaf.to(self._device), to_tensors(column))
            if name not in self.columns:
                self.columns[name] = tree_map(self._allocated, tensors)
            shapes = [
                leaf.shape[1:] for leaf in (first_leaf(tensors), first_leaf(self.columns[name]))
            ]
            if shapes[0] != shapes[1]:
                raise RequestError(
                    f"the saved replay buffer has rows of shape {tuple(shapes[0])}, here they have "
                    f"{tuple(shapes[1])}.",
                    "use the environment of the run that saved it",
                )

            def put(leaf: Tensor, part: Tensor) -> None:
                leaf[slots] = part

            tree_map(put, self.columns[name], tensors)

    def clear(self) -> None:
        """Forget all rows."""
        self.head = 0

    def restart(self, newest: Sequence[int], rows: int) -> None:
        """Forget all rows and continue after these, in as many rows."""
        if rows != self.rows or len(newest) != 1:
            raise RequestError(
                f"the saved replay buffer has {len(newest)} rings with {rows} rows each, here "
                f"there is one of all environments with {self.rows}.",
                "use the buffer_size and num_envs of the run that saved it",
            )
        self.head = newest[0]


class TensorPriorities:
    """Priorities of all rows of a `TensorRing`; new rows get the highest so far."""

    def __init__(self, ring: TensorRing, *, alpha: float, beta: Schedule, eps: float) -> None:
        self._ring, self._alpha, self._beta, self._eps = ring, alpha, beta, eps
        device = ring._device
        # MPS has no float64.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._leaves = torch.zeros(ring.rows * ring.num_envs, dtype=dtype, device=device)
        self._highest = torch.ones((), dtype=dtype, device=device)

    def add(self, fresh: Tensor, gone: Tensor) -> None:
        """Add and remove rows."""
        self._leaves[gone] = 0.0
        self._leaves[fresh] = self._highest

    def draw(self, random: torch.Generator, count: int, step: int) -> tuple[Tensor, Tensor]:
        """Rows, one from each of `count` strata of the sum, and their importance weights."""
        valid = self._ring.valid
        leaves = self._leaves if valid is None else self._leaves * valid
        sums = leaves.cumsum(0)
        strata = torch.arange(count, device=leaves.device)
        offsets = torch.rand(count, generator=random, device=leaves.device, dtype=leaves.dtype)
        wanted = (strata + offsets) * (sums[-1] / count)
        # Rounding up to the whole sum would end beyond the last row.
        wanted = torch.minimum(wanted, sums[-1] * (1 - torch.finfo(leaves.dtype).eps))
        rows = torch.searchsorted(sums, wanted, right=True).clamp(max=len(leaves) - 1)
        priorities = leaves[rows]
        weights = (priorities.min() / priorities) ** self._beta.at(step)
        return rows, weights.float()

    def learned(self, rows: Tensor, errors: Tensor) -> None:
        """Set priorities to `(|error| + eps) ** alpha`."""
        changed = (errors.detach().abs().to(self._leaves.dtype) + self._eps) ** self._alpha
        self._leaves[rows] = changed
        self._highest = torch.maximum(self._highest, changed.max())

    def get_state(self) -> dict[str, Any]:
        """All priorities, and the highest so far."""
        return {"leaves": to_arrays(self._leaves.cpu().clone()), "highest": float(self._highest)}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._leaves.copy_(torch.from_numpy(numpy.asarray(saved["leaves"])))
        self._highest.fill_(saved["highest"])


def _to_indices(space: spaces.Space[Any], column: Any) -> Any:
    """Discrete values as int64; all others as they are."""
    if isinstance(space, spaces.Dict):
        return {name: _to_indices(part, column[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_to_indices(*pair) for pair in zip(space.spaces, column, strict=True))
    return column.long() if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else column


_OWN = frozenset(("next", "ended", "valid", _FINAL_MASK))
"""Columns that are not those of a batch."""
