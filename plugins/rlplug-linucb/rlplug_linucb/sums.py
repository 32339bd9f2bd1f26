"""Sums over many rows: all that a ridge regression needs to know of them."""

from __future__ import annotations

from rlplug_linucb.backend import Array, Backend

__all__ = ["Sums"]


class Sums:
    """Weighted sums of rows per group, in float64: x xᵀ, target xᵀ and the weights.

    With a discount every row weighs that much less than the next, and what was summed before
    is discounted by every row that is added: sums of chunks equal the sum of all rows.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        groups: int,
        dim: int,
        targets: int,
        discount: float,
        squared_discount: bool,
    ) -> None:
        self.backend = backend
        self.discount = discount
        self.dim = dim
        self.weight = backend.zeros(groups)
        self.sums = backend.zeros(groups, dim + targets, dim)
        self.squared_sums = backend.zeros(groups, dim, dim) if squared_discount else None

    def add(self, x: Array, targets: Array, weights: Array | None, groups: Array | None) -> None:
        """Add rows x (n, dim) with targets (n, m), weights (n,) and the group of each row.

        The caller cuts rows into chunks: this makes copies of what it is given.
        """
        decay = self._decay(len(x))
        if decay is not None:
            self._fade(len(x))
            weights = decay if weights is None else weights * decay
        if len(self.weight) == 1:
            self._add_group(0, x, targets, weights, decay)
            return
        order, counts = self.backend.by_group(groups, len(self.weight))
        x, targets = x[order], targets[order]
        weights = None if weights is None else weights[order]
        decay = None if decay is None else decay[order]
        start = 0
        for group, count in counts:
            part = slice(start, start + count)
            self._add_group(
                group,
                x[part],
                targets[part],
                None if weights is None else weights[part],
                None if decay is None else decay[part],
            )
            start += count

    def _add_group(
        self, group: int, x: Array, targets: Array, weights: Array | None, decay: Array | None
    ) -> None:
        x, targets = self.backend.floats(x), self.backend.floats(targets)
        if weights is None:
            self.weight[group] += len(x)
        else:
            self.weight[group] += weights.sum()
            root = (weights**0.5)[:, None]
            x, targets = x * root, targets * root
        # One array times its own transpose costs half a product and is symmetric to the bit.
        block = self.sums[group]
        gram, moment = block[: self.dim], block[self.dim :]
        gram += x.T @ x
        moment += targets.T @ x
        if self.squared_sums is not None and decay is not None:
            faded = x * (decay**0.5)[:, None]
            squared = self.squared_sums[group]
            squared += faded.T @ faded

    def _decay(self, rows: int) -> Array | None:
        """The discount of each of the rows to come, the last one's being 1."""
        if self.discount == 1.0:
            return None
        xp = self.backend.xp
        ages = self.backend.floats(xp.arange(rows - 1, -1, -1))
        return self.discount**ages

    def _fade(self, rows: int) -> None:
        kept = self.discount**rows
        self.weight *= kept
        self.sums *= kept
        if self.squared_sums is not None:
            self.squared_sums *= kept * kept

    def arrays(self) -> list[Array]:
        """The sums themselves, to be added to those of others."""
        own = [self.weight, self.sums]
        return own if self.squared_sums is None else [*own, self.squared_sums]

    def finite(self) -> bool:
        """Whether no row brought a NaN, an infinity or a square beyond float64."""
        xp = self.backend.xp
        return all(bool(xp.isfinite(array).all()) for array in self.arrays())
