"""LinUCB's formulas, in the symbols of Li, Chu, Langford and Schapire (2010).

Per regression: A = Σ w x xᵀ, b = Σ w r x, theta = (A + λI)⁻¹ b; a row x is predicted to earn
xᵀtheta, with variance xᵀ(A + λI)⁻¹x. Updates are rank-one (Sherman-Morrison).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy
import torch
from torch import Tensor

from rlplug.spaces import as_array
from rlplug_linucb.arrays import (
    Array,
    BufferViews,
    Estimates,
    invert,
    namespace,
    pseudo_invert,
    read_only,
    row_dots,
    rows_by_group,
    to_array,
)

__all__ = ["RidgeRegressions", "Scores", "upper_confidence_bound"]

_STALE, _RECENT, _REFRESHED, _JITTERED, _PSEUDO_INVERTED = range(5)
"""What the entries of the buffer `counts` count."""
_PER_GROUP = ("sums", "squared_sums", "weight", "solved", "widened", "age", "stale")
"""The buffers with one entry per group."""
_RECENT_ROWS = 256
"""Rows that are added to A and b by one product."""
_BROADCAST_ROWS = 256
"""Up to so many rows are predicted by all groups at once; more would take too much memory."""
_MAX_VARIANCE = 1e5
"""A rank-one update at a larger variance would cancel as many digits; it is solved for instead."""


class Scores(NamedTuple):
    """Scores of every arm, each of shape (n, arms)."""

    pred_label: Any
    """Predicted reward."""
    pred_sigma: Any
    """Standard deviation of the prediction, for noise of unit variance."""
    ucb: Any
    """Upper confidence bound."""


def upper_confidence_bound(mean: Array, variance: Array, alpha: float) -> Scores:
    """UCB of arms with mean xᵀtheta and variance xᵀA⁻¹x (Li et al. 2010, algorithm 1, line 9)."""
    sigma = numpy.sqrt(variance)
    ucb = mean + alpha * sigma
    return Scores(mean, sigma, ucb)


class RidgeRegressions(BufferViews):
    """Independent ridge regressions (`groups` of them), from `dim` features to `targets` numbers.

    `A` and `b` are exact sums over the data; the penalty λ is added when they are solved, so that
    it is neither discounted nor counted once per learner. `A_inv` and `theta` follow each row by
    a rank-one update and are solved for again before rounding accumulates. Without a penalty
    they are solved by pseudo-inverse: directions without data have neither reward nor variance.
    """

    optional_state: ClassVar[tuple[str, ...]] = ("penalty",)
    """What states from before do not have."""
    numpy_devices: ClassVar[frozenset[str]] = frozenset({"cpu"})
    """Device types whose buffers are computed on with NumPy."""

    on_cpu: bool
    """Whether the buffers are computed on with NumPy."""

    A: Array
    """Σ w x xᵀ, (groups, dim, dim)."""
    b: Array
    """Σ w r xᵀ, (groups, targets, dim)."""
    A_inv: Array
    """(A + λI)⁻¹, or with `squared_discount` D-LinUCB's (A + λI)⁻¹ (A₂ + λI) (A + λI)⁻¹."""
    theta: Array
    """Coefficients (A + λI)⁻¹ b, a row per target: (groups, targets, dim)."""
    _sums: Array
    _squared: Array
    _weight: Array
    _recent_x: Array
    _recent_r: Array
    _recent_groups: Array
    _age: Array
    _stale: Array
    _counts: Array
    _dot: Callable[[Array, Array], Array]
    _outer: Callable[[Array, Array], Array]

    sums: Tensor
    """Per group A, and below it b."""
    squared_sums: Tensor | None
    """A₂: as A, but discounted by the square (D-LinUCB)."""
    weight: Tensor
    """Σ w of each group."""
    recent: Tensor
    """Rows [x, r] that A and b do not have yet, each times the root of its weight."""
    recent_groups: Tensor
    solved: Tensor
    """Per group (A + λI)⁻¹, and below it theta."""
    widened: Tensor | None
    """As `solved`, with D-LinUCB's matrix in place of the inverse."""
    age: Tensor
    """Rank-one updates since each group was solved."""
    stale: Tensor
    """Which groups must be solved before they are used."""
    counts: Tensor
    penalty: Tensor
    """λ that the groups that are not stale were solved with, which a loaded state brings along."""

    def __init__(
        self,
        groups: int,
        dim: int,
        *,
        targets: int = 1,
        l2_lambda: float = 1.0,
        discount: float = 1.0,
        squared_discount: bool = False,
        refresh_every: int = 1000,
    ) -> None:
        super().__init__()
        self.groups, self.dim, self.targets = groups, dim, targets
        self.l2_lambda, self.discount = l2_lambda, discount
        self.squared_discount = squared_discount
        self.refresh_every = refresh_every
        float64, height = torch.float64, dim + targets
        prior = torch.zeros((groups, height, dim), dtype=float64)
        if l2_lambda:
            prior.diagonal(dim1=1, dim2=2).fill_(1.0 / l2_lambda)
        squared = torch.zeros((groups, dim, dim), dtype=float64) if squared_discount else None
        self.register_buffer("sums", torch.zeros((groups, height, dim), dtype=float64))
        self.register_buffer("squared_sums", squared)
        self.register_buffer("weight", torch.zeros(groups, dtype=float64))
        self.register_buffer("recent", torch.zeros((_RECENT_ROWS, height), dtype=float64))
        self.register_buffer("recent_groups", torch.zeros(_RECENT_ROWS, dtype=torch.int64))
        self.register_buffer("solved", prior)
        self.register_buffer("widened", prior.clone() if squared_discount else None)
        self.register_buffer("age", torch.zeros(groups, dtype=torch.int64))
        self.register_buffer("stale", torch.zeros(groups, dtype=torch.bool))
        self.register_buffer("counts", torch.zeros(5, dtype=torch.int64))
        self.register_buffer("penalty", torch.tensor(l2_lambda, dtype=float64))
        self.renew_views()

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # States from before do not tell it.
        unknown = torch.full_like(self.penalty, torch.nan)
        state_dict.setdefault(f"{prefix}penalty", unknown)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if self.penalty.is_meta or float(self.penalty) == self.l2_lambda:
            return
        # Another tensor, as the state may hold this one.
        self.penalty = torch.full_like(self.penalty, self.l2_lambda)
        self.invalidate(slice(None))

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Means (n, k, targets) and variances (n, k), before any noise.

        x (n, dim) is predicted by each of the k groups, x (n, k, dim) by the only one.
        """
        if self._counts[_STALE]:
            self.refresh()
        dot, theta, A_inv = self._dot, self.theta, self.A_inv
        if x.ndim == 3:
            mean, variance = _predict_rows(
                x.reshape(math.prod(x.shape[:2]), self.dim), theta[0], A_inv[0]
            )
            return mean.reshape(*x.shape[:2], self.targets), variance.reshape(x.shape[:2])
        if len(x) == 1:
            x = x[0]
            mean, variance = dot(theta, x), dot(x @ A_inv, x)
            return mean[None], abs(variance)[None]
        if len(x) <= _BROADCAST_ROWS:
            mean, variance = _predict_rows(x, theta, A_inv)
        else:
            each = [_predict_rows(x, theta[group], A_inv[group]) for group in range(self.groups)]
            mean, variance = map(namespace(x).stack, zip(*each, strict=True))
        return mean.swapaxes(0, 1), variance.T

    def coefficients(self) -> Tensor:
        """theta of every group as a tensor, (groups, targets, dim), as it was last solved."""
        return self.solved[:, self.dim :]

    def predict_by(self, groups: Array, x: Array) -> tuple[Array, Array]:
        """Means (n, k, targets) and variances (n, k) of rows x (n, dim) by their groups (n, k)."""
        if self._counts[_STALE]:
            self.refresh()
        if not len(x):
            none = numpy.zeros((*groups.shape, self.targets))
            return self.to_array(none), self.to_array(none[..., 0])
        used, places = numpy.unique(groups, return_inverse=True)
        places = self.to_array(places.reshape(groups.shape), "int64")
        theta, A_inv = self.theta[used], self.A_inv[used]
        each = [_predict_rows(x, theta[index], A_inv[index]) for index in range(len(used))]
        mean, variance = map(namespace(x).stack, zip(*each, strict=True))
        rows = namespace(x).arange(len(x))[:, None]
        return mean[places, rows], variance[places, rows]

    def update(self, group: int, x: Array, r: Array, w: float = 1.0) -> None:
        """Learn one row x (dim,) with its rewards r (targets,) and weight w."""
        self.add(group, x, r, w)
        if not self._stale[group]:
            self.sherman_morrison(group, x, r, w)

    def add(self, group: int, x: Array, r: Array, w: float) -> None:
        """Add one row to the sums, of which A and b wait for `add_recent`."""
        if self.discount < 1.0:
            self.discount_(self.discount)
        self._weight[group] += w
        if self._squared is not None:
            squared = self._squared[group]
            squared += self._outer(w * x, x)
        if w != 1.0:
            x, r = math.sqrt(w) * x, math.sqrt(w) * r
        if not self.l2_lambda:
            # Rank-one updates keep the rank of a pseudo-inverse.
            self.invalidate(group)
        index = int(self._counts[_RECENT])
        self._recent_x[index], self._recent_r[index] = x, r
        self._recent_groups[index] = group
        self._counts[_RECENT] = index + 1
        if index + 1 == _RECENT_ROWS:
            self.add_recent()

    def add_recent(self) -> None:
        """Add the rows since the last call to A and b: one product is faster than many updates."""
        count = int(self._counts[_RECENT])
        if not count:
            return
        self._counts[_RECENT] = 0
        order, sizes = rows_by_group(self._recent_groups[:count], self.groups)
        start = 0
        for group, size in sizes:
            rows = order[start : start + size]
            x, r = self._recent_x[rows], self._recent_r[rows]
            A, b = self.A[group], self.b[group]
            # A += w x xᵀ and b += w r x for each row: x and r are scaled by the root of w.
            A += x.T @ x
            b += r.T @ x
            start += size

    def sherman_morrison(self, group: int, x: Array, r: Array, w: float) -> tuple[Array, float]:
        """Rank-one update of A⁻¹ and theta; the error (targets,) and variance it made before."""
        dot, outer = self._dot, self._outer
        A_inv, theta = self.A_inv[group], self.theta[group]
        A_inv_x = dot(A_inv, x)
        variance = float(dot(x, A_inv_x))
        error = r - dot(theta, x)
        if w * variance > _MAX_VARIANCE:
            self.invalidate(group)
            return error, variance
        gain = w / (1.0 + w * variance) * A_inv_x
        A_inv -= outer(A_inv_x, gain)
        theta += outer(error, gain)
        age = self._age[group] = self._age[group] + 1
        if age >= self.refresh_every:
            self.invalidate(group)
        return error, variance

    def solve(self, groups: slice | list[int], explained: Tensor | None = None) -> None:
        """Compute A⁻¹ and theta of these groups from their sums, less `explained` of those."""
        dim = self.dim
        self.add_recent()
        sums = self.sums[groups] if explained is None else self.sums[groups] - explained
        penalty = self.l2_lambda * torch.eye(dim, dtype=sums.dtype, device=sums.device)
        A, b = sums[:, :dim] + penalty, sums[:, dim:].mT
        A_inv, jittered, pseudo_inverted = invert(A) if self.l2_lambda else pseudo_invert(A)
        theta = A_inv @ b
        self.solved[groups, :dim], self.solved[groups, dim:] = A_inv, theta.mT
        self.solved_now(groups, jittered, pseudo_inverted)
        if self.widened is not None and self.squared_sums is not None:
            squared = self.squared_sums[groups] + penalty
            self.widened[groups, :dim] = A_inv @ squared @ A_inv
            self.widened[groups, dim:] = theta.mT

    def solved_now(
        self, groups: slice | list[int], jittered: int = 0, pseudo_inverted: int = 0
    ) -> None:
        """Count these groups as solved from all rows so far."""
        self._age[groups] = 0
        self._stale[groups] = False
        self._counts[_STALE] = self._stale.sum()
        self._counts[_REFRESHED] += len(self._age[groups])
        self._counts[_JITTERED] += jittered
        self._counts[_PSEUDO_INVERTED] += pseudo_inverted

    def refresh(self) -> None:
        """Solve the groups that are stale."""
        if not self._counts[_STALE]:
            return
        stale: list[int] = self.stale.nonzero().flatten().tolist()
        # Slices are views; indexing with a list copies, at a higher cost than a small inverse.
        if len(stale) == self.groups:
            self.solve(slice(None))
        elif len(stale) == 1:
            self.solve(slice(stale[0], stale[0] + 1))
        else:
            self.solve(stale)

    def invalidate(self, groups: Any) -> None:
        """Mark groups to be solved before they are used again."""
        self._stale[groups] = True
        self._counts[_STALE] = self._stale.sum()

    def is_stale(self) -> bool:
        """Whether any group must be solved before it is used."""
        return bool(self._counts[_STALE])

    def totals(self) -> list[Array]:
        """The sums over all rows: weights, A and b, and with `squared_discount` A₂."""
        totals = [self._weight, self._sums]
        return totals if self._squared is None else [*totals, self._squared]

    def absorb(self, sums: Sequence[Array], rows: int) -> None:
        """Add the sums of so many rows, in the order of `totals`."""
        if self.discount < 1.0:
            self.discount_(self.discount**rows)
        for total, added in zip(self.totals(), sums, strict=True):
            total += added
        self.invalidate(sums[0] != 0)

    def forget(self, group: int) -> None:
        """Make a group what it was before its first row."""
        self.add_recent()
        for buffer in (self.sums, self.weight, self.squared_sums):
            if buffer is not None:
                buffer[group] = 0.0
        self.invalidate(group)

    def rearrange(self, sources: Sequence[int | None]) -> None:
        """Make group i what group `sources[i]` was, or one without data where that is None."""
        self.add_recent()
        fresh = RidgeRegressions(
            len(sources),
            self.dim,
            targets=self.targets,
            l2_lambda=self.l2_lambda,
            squared_discount=self.squared_discount,
        ).to(self.sums.device)
        kept = [group for group, source in enumerate(sources) if source is not None]
        taken = [source for source in sources if source is not None]
        for name in _PER_GROUP:
            buffer, old = getattr(fresh, name), getattr(self, name)
            if buffer is not None:
                buffer[kept] = old[taken]
                setattr(self, name, buffer)
        self.groups = len(sources)
        self.counts[_STALE] = self.stale.sum()
        self.renew_views()

    def discount_(self, gamma: float) -> None:
        """Multiply the sums by `gamma`; the penalty stays."""
        self.add_recent()
        self._sums *= gamma
        self._weight *= gamma
        if self._squared is not None:
            self._squared *= gamma * gamma
        self.invalidate(slice(None))

    def estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta of every group, up to date; b and theta of the first target."""
        self.add_recent()
        self.refresh()
        arrays = (self.A, self.b[:, 0], self.A_inv, self.theta[:, 0])
        return Estimates(*map(read_only, arrays))

    def fallbacks(self) -> Mapping[str, int]:
        """How many groups were solved for, and for how many Cholesky needed a fallback."""
        return {
            "refreshed": int(self._counts[_REFRESHED]),
            "jittered": int(self._counts[_JITTERED]),
            "pseudo_inverted": int(self._counts[_PSEUDO_INVERTED]),
        }

    def to_array(self, values: Any, dtype: str | None = "float64") -> Array:
        """The values as an array of the same type and device as the sums."""
        if self.on_cpu:
            return numpy.asarray(as_array(values), dtype)
        return to_array(values, self.A, dtype)

    def make_views(self) -> dict[str, Any]:
        """NumPy arrays in the buffers' memory, or the buffers themselves on other devices."""
        on_cpu = self.sums.device.type in self.numpy_devices

        def view(buffer: Tensor) -> Array:
            return buffer.numpy() if on_cpu else buffer

        dim, solved = self.dim, self.solved if self.widened is None else self.widened
        return {
            "on_cpu": on_cpu,
            "A": view(self.sums[:, :dim]),
            "b": view(self.sums[:, dim:]),
            "A_inv": view(solved[:, :dim]),
            "theta": view(solved[:, dim:]),
            "_sums": view(self.sums),
            "_squared": None if self.squared_sums is None else view(self.squared_sums),
            "_weight": view(self.weight),
            "_recent_x": view(self.recent[:, :dim]),
            "_recent_r": view(self.recent[:, dim:]),
            "_recent_groups": view(self.recent_groups),
            "_age": view(self.age),
            "_stale": view(self.stale),
            "_counts": view(self.counts),
            "_dot": numpy.ndarray.dot if on_cpu else torch.matmul,
            "_outer": _outer if on_cpu else torch.outer,
        }


def _predict_rows(x: Array, theta: Array, A_inv: Array) -> tuple[Array, Array]:
    """Means xᵀtheta (..., n, targets) and variances xᵀA⁻¹x (..., n) of rows x (n, dim)."""
    mean = x @ theta.swapaxes(-1, -2)
    variance = row_dots(x @ A_inv, x)
    # Rounding may leave a variance of zero slightly negative.
    return mean, abs(variance)


def _outer(x: Array, y: Array) -> Array:
    # For one row @ takes three times as long, and broadcasting twice.
    return x[:, None].dot(y[None, :])
