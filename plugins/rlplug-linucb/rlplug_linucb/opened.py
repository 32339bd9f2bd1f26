"""The buffers of ridge regressions as arrays: to write to these is to write to those.

What is done once per row is done here: attributes of a torch module take thrice as long to look up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlplug_linucb.backend import Array, Backend, NumpyBackend, TorchBackend

if TYPE_CHECKING:
    from rlplug_linucb.ridge import Ridges

__all__ = ["RECENT", "RECENT_ROWS", "STALE", "Opened"]

STALE, RECENT = range(2)
"""Where `counts` counts stale groups and recent rows."""
RECENT_ROWS = 256
"""Rows that come together before they are brought into the sums."""
_STEEP = 1e5
"""A row that lowers a variance by more than this factor would cost as many digits of it."""
_FEW = 4
"""Up to so many rows are cheaper predicted one by one than group by group."""


class Opened:
    """What one backend computes with; it holds while the buffers stay where they are."""

    __slots__ = (
        "age",
        "backend",
        "coefficients",
        "counts",
        "dim",
        "discount",
        "flat_width",
        "groups",
        "inverse",
        "outer",
        "product",
        "recent",
        "recent_groups",
        "refresh_every",
        "scratch",
        "solved",
        "squared_sums",
        "stale",
        "sums",
        "targets",
        "totals",
        "weight",
    )

    def __init__(self, ridges: Ridges) -> None:
        self.groups, self.dim, self.targets = ridges.groups, ridges.dim, ridges.targets
        self.discount, self.refresh_every = ridges.discount, ridges.refresh_every
        device = ridges.sums.device
        on_numpy = device.type in ridges.numpy_devices
        self.backend: Backend = NumpyBackend() if on_numpy else TorchBackend(device)
        view = self.backend.view
        self.product, self.outer = self.backend.product, self.backend.outer
        self.sums, self.weight = view(ridges.sums), view(ridges.weight)
        self.recent, self.recent_groups = view(ridges.recent), view(ridges.recent_groups)
        self.solved, self.age = view(ridges.solved), view(ridges.age)
        self.stale, self.counts = view(ridges.stale), view(ridges.counts)
        squared = ridges.squared_sums
        self.squared_sums = None if squared is None else view(squared)
        width = ridges.solved if ridges.widened is None else ridges.widened
        self.flat_width = view(width.view(-1, ridges.dim))
        self.inverse = view(width[:, : ridges.dim])
        self.coefficients = view(width[:, ridges.dim :])
        self.totals = [self.weight, self.sums]
        if self.squared_sums is not None:
            self.totals.append(self.squared_sums)
        self.scratch = self.backend.zeros(ridges.dim + ridges.targets, ridges.dim)

    def predict(self, x: Array) -> tuple[Array, Array]:
        """As `Ridges.predict`, from what was solved last."""
        if len(x) == 1:
            return self._predict_row(x[0]) if x.ndim == 2 else self._predict_group(0, x[0])
        if x.ndim == 3:
            n, k, dim = x.shape
            means, spread = self._predict_group(0, x.reshape(n * k, dim))
            return means.reshape(n, k, self.targets), spread.reshape(n, k)
        few = len(x) <= _FEW
        if few:
            both = [self._predict_row(row) for row in x]
        else:
            both = [self._predict_group(group, x) for group in range(self.groups)]
        means, spreads = zip(*both, strict=True)
        stack, axis = self.backend.xp.stack, 0 if few else 1
        return stack(means, axis), stack(spreads, axis)

    def _predict_row(self, row: Array) -> tuple[Array, Array]:
        product, dim = self.product, self.dim
        products = product(self.flat_width, row).reshape(self.groups, -1)
        return products[:, dim:], abs(product(products[:, :dim], row))

    def _predict_group(self, group: int, x: Array) -> tuple[Array, Array]:
        # The inverse is its own transpose, and BLAS multiplies twice as fast by that.
        backend = self.backend
        spread = backend.dots(backend.product(x, self.inverse[group]), x)
        # Rounding may leave a variance of nought a trifle below it.
        return backend.product(x, self.coefficients[group].T), abs(spread)

    def learn_row(self, group: int, x: Array, targets: Array, weight: float) -> None:
        """Add a row to the sums, and have what was solved follow it."""
        self.add_row(group, x, targets, weight)
        if not (self.counts[STALE] and self.stale[group]):
            column, spread = self.innovation(group, x, targets)
            self.correct(group, column, spread, weight)

    def add_row(self, group: int, x: Array, targets: Array, weight: float) -> None:
        """Add one row to the sums alone."""
        if self.discount < 1.0:
            self.discount_(self.discount)
        self.weight[group] += weight
        if self.squared_sums is not None:
            squared = self.squared_sums[group]
            squared += self.outer(x * weight, x, self.scratch[: self.dim])
        if weight != 1.0:
            root = math.sqrt(weight)
            x, targets = x * root, targets * root
        counts, dim = self.counts, self.dim
        place = int(counts[RECENT])
        row = self.recent[place]
        row[:dim], row[dim:] = x, targets
        self.recent_groups[place] = group
        counts[RECENT] = place + 1
        if place + 1 == RECENT_ROWS:
            self.fold()

    def innovation(self, group: int, x: Array, targets: Array) -> tuple[Array, float]:
        """What a row would change: A⁻¹x, below it predictions less targets; and xᵀA⁻¹x."""
        dim, product = self.dim, self.product
        column = product(self.solved[group], x)
        if self.targets == 1:
            # One number is changed sooner than an array of one.
            column[dim] -= targets[0]
        else:
            excess = column[dim:]
            excess -= targets
        return column, float(product(column[:dim], x))

    def correct(self, group: int, column: Array, spread: float, weight: float) -> None:
        """Move what was solved by one row (Sherman and Morrison's formula)."""
        if weight * spread > _STEEP:
            self.invalidate(group)
            return
        share = weight / (1.0 + weight * spread)
        # The block is named first: `solved[group] -= less` would also copy it onto itself.
        block = self.solved[group]
        block -= self.outer(column, column[: self.dim] * share, self.scratch)
        age = int(self.age[group]) + 1
        self.age[group] = age
        if age >= self.refresh_every:
            self.invalidate(group)

    def fold(self) -> None:
        """Bring the recent rows into the sums: one product of many rows, not many of one."""
        rows, dim = int(self.counts[RECENT]), self.dim
        if not rows:
            return
        self.counts[RECENT] = 0
        recent = self.recent[:rows]
        if self.groups == 1:
            block = self.sums[0]
            block += recent.T @ recent[:, :dim]
            return
        order, counts = self.backend.by_group(self.recent_groups[:rows], self.groups)
        start = 0
        for group, count in counts:
            part, block = recent[order[start : start + count]], self.sums[group]
            block += part.T @ part[:, :dim]
            start += count

    def discount_(self, gamma: float) -> None:
        """Let all that was learned weigh `gamma` times as much; the penalty stays."""
        self.fold()
        self.sums *= gamma
        self.weight *= gamma
        if self.squared_sums is not None:
            self.squared_sums *= gamma * gamma
        self.invalidate(slice(None))

    def invalidate(self, groups: Any) -> None:
        """Have these groups solved anew before they are used again."""
        self.stale[groups] = True
        self.counts[STALE] = self.stale.sum()
