"""A buffer of the most recent rows, for gradient steps and refits."""

from __future__ import annotations

from typing import NamedTuple

import numpy
import torch
from gymnasium import Space
from torch import Tensor, nn

__all__ = ["Kept", "Window"]


class Kept(NamedTuple):
    """Columns of rows to learn from."""

    observations: Tensor
    actions: Tensor
    labels: Tensor
    weights: Tensor


class Window(nn.Module):
    """Keeps the last `size` rows, and draws from them; the generator's state is saved with them."""

    observations: Tensor
    actions: Tensor
    labels: Tensor
    weights: Tensor
    counts: Tensor
    """Seed, number of draws, number of rows added, step of the last refit."""

    def __init__(self, space: Space[object], size: int, seed: int) -> None:
        super().__init__()
        kind = torch.from_numpy(numpy.empty(0, space.dtype)).dtype
        kept = torch.float32 if kind.is_floating_point else kind
        self.register_buffer("observations", torch.zeros((size, *(space.shape or ())), dtype=kept))
        self.register_buffer("actions", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("labels", torch.zeros(size))
        self.register_buffer("weights", torch.zeros(size))
        self.register_buffer("counts", torch.tensor([seed, 0, 0, 0]))

    def __len__(self) -> int:
        """Number of rows held."""
        return min(int(self.counts[2]), len(self.actions))

    def add(self, rows: Kept) -> None:
        """Add rows, replacing the oldest."""
        size, came, count = len(self.actions), int(self.counts[2]), len(rows.actions)
        first = max(0, count - size)
        places = torch.arange(came + first, came + count, device=self.actions.device) % size
        for mine, new in zip(self._columns(), rows, strict=True):
            mine[places] = new[first:].to(mine.dtype)
        self.counts[2] = came + count

    def draw(self, shape: tuple[int, int]) -> Kept:
        """Draw rows uniformly with replacement; every column begins with this shape."""
        seed, draws, *_ = self.counts.tolist()
        self.counts[1] = draws + 1
        # A counter-based generator has no state to save but the number of draws.
        random = numpy.random.Generator(numpy.random.Philox(key=seed, counter=[0, 0, 0, draws]))
        places = random.integers(0, len(self), shape[0] * shape[1])
        drawn = torch.from_numpy(places).to(self.actions.device)
        picked = (column.index_select(0, drawn) for column in self._columns())
        return Kept(*(column.view(*shape, *column.shape[1:]) for column in picked))

    def rows(self) -> Kept:
        """All rows held."""
        return Kept(*(column[: len(self)] for column in self._columns()))

    @property
    def refitted(self) -> int:
        """The step of the last refit."""
        return int(self.counts[3])

    @refitted.setter
    def refitted(self, step: int) -> None:
        self.counts[3] = step

    def _columns(self) -> Kept:
        return Kept(self.observations, self.actions, self.labels, self.weights)
