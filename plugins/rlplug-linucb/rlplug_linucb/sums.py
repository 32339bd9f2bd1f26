"""Sums over many rows at once: all that ridge regressions need to know of them."""

from __future__ import annotations

from rlplug_linucb.arrays import Array, namespace, rows_by_group, to_array
from rlplug_linucb.linucb import RidgeRegressions

__all__ = ["Sums"]


class Sums:
    """Weighted sums of rows per group in float64: Σ w, Σ w x xᵀ and Σ w r xᵀ.

    With a discount each row is discounted once per later row, and so are the sums before them:
    adding rows in chunks equals adding them at once.
    """

    def __init__(self, regressions: RidgeRegressions) -> None:
        self.dim, self.discount = regressions.dim, regressions.discount
        totals = regressions.totals()
        zeros_like = namespace(totals[0]).zeros_like
        self.weight, self.sums, *squared = (zeros_like(total) for total in totals)
        self.squared_sums = squared[0] if squared else None

    def add(self, x: Array, r: Array, weights: Array | None, groups: Array | None) -> None:
        """Add rows x (n, dim) with rewards r (n, targets), weights (n,) and groups (n,).

        Rows are copied, so the caller passes them in chunks.
        """
        decay = self._decay(len(x))
        if decay is not None:
            self._discount(self.discount ** len(x))
            weights = decay if weights is None else weights * decay
        if len(self.weight) == 1:
            self._add_group(0, x, r, weights, decay)
            return
        order, sizes = rows_by_group(groups, len(self.weight))
        x, r = x[order], r[order]
        weights = None if weights is None else weights[order]
        decay = None if decay is None else decay[order]
        start = 0
        for group, size in sizes:
            part = slice(start, start + size)
            self._add_group(
                group,
                x[part],
                r[part],
                None if weights is None else weights[part],
                None if decay is None else decay[part],
            )
            start += size

    def _add_group(
        self, group: int, x: Array, r: Array, weights: Array | None, decay: Array | None
    ) -> None:
        x, r = to_array(x, self.weight), to_array(r, self.weight)
        if weights is None:
            self.weight[group] += len(x)
        else:
            self.weight[group] += weights.sum()
            root = (weights**0.5)[:, None]
            x, r = x * root, r * root
        # BLAS computes the product of an array with its own transpose at half the cost.
        A, b = self.sums[group][: self.dim], self.sums[group][self.dim :]
        A += x.T @ x
        b += r.T @ x
        if self.squared_sums is not None and decay is not None:
            decayed = x * (decay**0.5)[:, None]
            squared = self.squared_sums[group]
            squared += decayed.T @ decayed

    def _decay(self, rows: int) -> Array | None:
        """The discount of each of the rows to add; the last one's is 1."""
        if self.discount == 1.0:
            return None
        ages = namespace(self.weight).arange(rows - 1, -1, -1)
        return self.discount ** to_array(ages, self.weight)

    def _discount(self, gamma: float) -> None:
        self.weight *= gamma
        self.sums *= gamma
        if self.squared_sums is not None:
            self.squared_sums *= gamma * gamma

    def arrays(self) -> list[Array]:
        """The sums, in the order of `RidgeRegressions.totals`."""
        sums = [self.weight, self.sums]
        return sums if self.squared_sums is None else [*sums, self.squared_sums]

    def finite(self) -> bool:
        """Whether all sums are finite."""
        isfinite = namespace(self.weight).isfinite
        return all(bool(isfinite(array).all()) for array in self.arrays())
