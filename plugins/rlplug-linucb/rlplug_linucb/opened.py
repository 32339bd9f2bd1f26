"""The buffers of ridge regressions as arrays: to write to these is to write to those."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug_linucb.backend import Array, Backend, NumpyBackend, TorchBackend

if TYPE_CHECKING:
    from rlplug_linucb.ridge import Ridges

__all__ = ["Opened"]

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
        "flat_width",
        "groups",
        "inverse",
        "recent",
        "recent_groups",
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
        device = ridges.sums.device
        on_numpy = device.type in ridges.numpy_devices
        self.backend: Backend = NumpyBackend() if on_numpy else TorchBackend(device)
        view = self.backend.view
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
        if x.ndim == 3:
            n, k, dim = x.shape
            if n == 1:
                return self._predict_group(0, x[0])
            means, spread = self._predict_group(0, x.reshape(n * k, dim))
            return means.reshape(n, k, self.targets), spread.reshape(n, k)
        if len(x) == 1:
            return self._predict_row(x[0])
        few = len(x) <= _FEW
        if few:
            both = [self._predict_row(row) for row in x]
        else:
            both = [self._predict_group(group, x) for group in range(self.groups)]
        means, spreads = zip(*both, strict=True)
        stack, axis = self.backend.xp.stack, 0 if few else 1
        return stack(means, axis), stack(spreads, axis)

    def _predict_row(self, row: Array) -> tuple[Array, Array]:
        product, dim = self.backend.product, self.dim
        products = product(self.flat_width, row).reshape(self.groups, -1)
        return products[:, dim:], abs(product(products[:, :dim], row))

    def _predict_group(self, group: int, x: Array) -> tuple[Array, Array]:
        # The inverse is its own transpose, and BLAS multiplies twice as fast by that.
        backend = self.backend
        spread = backend.dots(backend.product(x, self.inverse[group]), x)
        # Rounding may leave a variance of nought a trifle below it.
        return backend.product(x, self.coefficients[group].T), abs(spread)
