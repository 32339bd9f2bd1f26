"""Fragments of a rollout of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlplug.batch.nested import tree_map
from rlplug.feeds.feed import Experience

__all__ = ["TensorFragments"]


class TensorFragments:
    """Pieces of episodes that end with them, or at `longest` steps.

    How many there are must be known to the host: it waits for the device once per rollout.
    """

    def __init__(self, experience: Experience, longest: int) -> None:
        self._experience = experience
        self._longest = longest
        steps, stepped = experience.steps, experience.stepped
        ends = experience.ended().clone()
        ends[-1] = True
        real = None if stepped is None else experience.grid(stepped)
        if real is not None:
            ends[:-1] |= ~real[1:]
        last = ends.clone()
        if longest:
            last[longest - 1 :: longest] = True
        if real is not None:
            last &= real
        # Transposed: rows are ordered environment by environment.
        self._envs, self._last_times = last.T.nonzero(as_tuple=True)
        self.continued: Tensor = ~ends[self._last_times, self._envs]
        """Whether the next fragment continues the episode."""
        stops = self._envs * steps + self._last_times
        stops = stops + 1 if real is None else real.T.reshape(-1).cumsum(0)[stops]
        starts = torch.cat([stops.new_zeros(1), stops[:-1]])
        self._first_times = starts % steps
        if isinstance(stepped, Tensor):
            self._first_times = stepped.nonzero().squeeze(1)[starts] % steps
        self.spans: Tensor = torch.stack((starts, stops), dim=1)

    def final_observations(self) -> Any:
        """The observation after each fragment."""
        following = self._experience.next_grid("observations")
        return tree_map(lambda leaf: leaf[self._last_times, self._envs], following)

    def states(self) -> Any:
        """The recurrent state before each fragment: stored, or the initial one."""
        interval = self._longest or self._experience.steps
        is_stored = self._first_times % interval == 0
        which = self._first_times // interval

        def table(initial: Tensor, *stored: Tensor) -> Tensor:
            of_each = torch.stack(stored)[which, self._envs]
            where = is_stored.reshape(-1, *(1,) * (of_each.dim() - 1))
            return torch.where(where, of_each, initial)

        return tree_map(table, self._experience.initial_state, *self._experience.states)
