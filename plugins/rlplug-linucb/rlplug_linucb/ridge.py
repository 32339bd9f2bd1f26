"""LinUCB's formulas, in the symbols of Li, Chu, Langford and Schapire (2010, algorithm 1).

A += w x xᵀ,  b += w r x                 a row x with reward r and weight w
theta = (A + λI)⁻¹ b                     the coefficients
ucb = xᵀtheta + alpha √(xᵀ(A + λI)⁻¹x)   the bound by which arms are chosen
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlplug_linucb.config import LinearOptions

__all__ = ["ArrayModule", "Estimates", "Floats", "Ridge", "Scores", "upper_confidence_bound"]

Floats: TypeAlias = NDArray[numpy.float64]

_AT_ONCE = 256
"""Rows that are predicted by all groups at once; more would take too much memory."""
_MAX_VARIANCE = 1e5
"""A rank-one update at a larger variance would cancel as many digits; it is solved for instead."""
_RANK_TOLERANCE = 1e-13
"""Eigenvalues that are smaller, relative to the largest, are rounding."""
_MUST_BE_SOLVED = 1 << 62
"""Age of a group whose A⁻¹ and theta are not those of its sums."""

# vecdot came with NumPy 2; einsum takes twice as long.
_row_dots: Any = getattr(numpy, "vecdot", partial(numpy.einsum, "...d,...d->..."))


class Scores(NamedTuple):
    """Scores of every arm, each of shape (n, arms)."""

    pred_label: Any
    """Predicted reward."""
    pred_sigma: Any
    """Standard deviation of the prediction, for noise of unit variance."""
    ucb: Any
    """Upper confidence bound."""


class Estimates(NamedTuple):
    """Copies of the sums and the solution, for each arm, or without that axis for all together."""

    A: Floats
    """Σ w x xᵀ without the penalty, (arms, d, d)."""
    b: Floats
    """Σ w r x, (arms, d)."""
    A_inv: Floats
    """(A + λI)⁻¹, (arms, d, d)."""
    theta: Floats
    """Coefficients, (arms, d)."""


def upper_confidence_bound(mean: Floats, variance: Floats, alpha: float) -> Scores:
    """UCB of arms with mean xᵀtheta and variance xᵀA⁻¹x (Li et al. 2010, algorithm 1, line 9)."""
    sigma = numpy.sqrt(variance)
    return Scores(mean, sigma, mean + alpha * sigma)


class ArrayModule(nn.Module):
    """A module whose buffers are computed on in NumPy: `self.name` is an array in their memory.

    They stay on the CPU and in double precision, wherever the module is moved.
    """

    def show_arrays(self) -> None:
        """Set the arrays as attributes: to look up a buffer would cost as much as a product."""
        shown = {name: one.numpy() for name, one in self._buffers.items() if one is not None}
        vars(self).update(shown)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        for module in self.children():
            module._apply(fn)  # type: ignore[no-untyped-call] # torch leaves it untyped
        return self

    def __getstate__(self) -> dict[str, Any]:
        # A copied array would not share memory with the copied buffer.
        return {name: value for name, value in vars(self).items() if name not in self._buffers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.show_arrays()


class Ridge(ArrayModule):
    """Independent ridge regressions (`groups` of them), from `dim` features to `targets` numbers.

    `A` and `b` are exact sums over the data; the penalty λ is added when they are solved, so that
    it is neither discounted nor counted once per learner. `A_inv` and `theta` follow each row by
    a rank-one update (Sherman-Morrison) and are solved for again before rounding accumulates.
    Without a penalty they are solved by pseudo-inverse: directions without data have neither
    reward nor variance.
    """

    per_group: ClassVar[Sequence[str]] = ("A", "b", "A_inv", "theta", "age")
    """Buffers with one entry per group."""

    A: Floats
    """Σ w x xᵀ, (groups, dim, dim)."""
    b: Floats
    """Σ w r xᵀ, (groups, targets, dim)."""
    A_inv: Floats
    """(A + λI)⁻¹."""
    theta: Floats
    """(A + λI)⁻¹ b, a row per target: (groups, targets, dim)."""
    age: NDArray[numpy.int64]
    """Rank-one updates since each group was solved."""
    solutions: NDArray[numpy.int64]
    """How many groups were solved, and how many of them were singular."""
    l2_lambda: Floats
    """λ of the solutions, which a loaded state brings along."""

    def __init__(self, groups: int, dim: int, options: LinearOptions, targets: int = 1) -> None:
        super().__init__()
        self.options, self.dim, self.targets = options, dim, targets
        self.is_stale = False
        float64, penalty = torch.float64, options.l2_lambda
        prior = torch.eye(dim, dtype=float64) * (1.0 / penalty if penalty else 0.0)
        self.register_buffer("A", torch.zeros((groups, dim, dim), dtype=float64))
        self.register_buffer("b", torch.zeros((groups, targets, dim), dtype=float64))
        self.register_buffer("A_inv", prior.repeat(groups, 1, 1))
        self.register_buffer("theta", torch.zeros((groups, targets, dim), dtype=float64))
        self.register_buffer("age", torch.zeros(groups, dtype=torch.int64))
        self.register_buffer("solutions", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("l2_lambda", torch.tensor(penalty, dtype=float64))
        self.show_arrays()

    def show_arrays(self) -> None:
        """The same, and A⁻¹ and theta of all groups below each other, for a single product."""
        super().show_arrays()
        groups = len(self.A)
        self._all_A_inv = self.A_inv.reshape(groups * self.dim, self.dim)
        self._all_theta = self.theta.reshape(groups * self.targets, self.dim)
        # Up to how many rows rank-one updates cost less than solving for the groups of the rows.
        rank_one = groups * max(1, self.dim // 16)
        self.most_rank_one = rank_one if self.options.discount == 1.0 else 1

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.show_arrays()
        if self.l2_lambda != self.options.l2_lambda:
            self.l2_lambda.fill(self.options.l2_lambda)
            self.invalidate()
        self.is_stale = bool((self.age >= self.options.refresh_every).any())

    # -- predicting ----------------------------------------------------------------------------

    def predict_all(self, x: Floats) -> tuple[Floats, Floats]:
        """Means xᵀtheta (n, groups, targets) and variances xᵀA⁻¹x (n, groups) of x (n, dim)."""
        if self.is_stale:
            self.refresh()
        shape = len(x), len(self.A), self.targets
        if len(x) == 1:
            (row,) = x
            variance = self._all_A_inv.dot(row).reshape(shape[1], self.dim).dot(row)
            # Rounding may leave a variance of zero slightly negative.
            return self._all_theta.dot(row).reshape(shape), abs(variance)[None]
        variance = numpy.empty(shape[:2])
        for start in range(0, len(x), _AT_ONCE):
            part = x[start : start + _AT_ONCE]
            variance[start : start + _AT_ONCE] = _row_dots(part @ self.A_inv, part).T
        return (x @ self._all_theta.T).reshape(shape), abs(variance)

    def predict_rows(self, x: Floats) -> tuple[Floats, Floats]:
        """Means and variances (n, k) of rows x (n, k, dim) by the only group, of one target."""
        if self.is_stale:
            self.refresh()
        rows = x.reshape(-1, self.dim)
        variance = abs(_row_dots(rows @ self.A_inv[0], rows))
        return x @ self.theta[0, 0], variance.reshape(x.shape[:2])

    # -- learning ------------------------------------------------------------------------------

    def learn(self, group: int, x: Floats, r: Floats, w: float = 1.0) -> None:
        """Learn one row x (dim,) with its rewards r (targets,) and weight w."""
        self.add(group, x, r, w)
        self.sherman_morrison(group, x, r, w)

    def add(self, group: int, x: Floats, r: Floats, w: float) -> None:
        """A += w x xᵀ and b += w r x."""
        if self.options.discount < 1.0:
            Ridge.discount_(self, self.options.discount)
        A, b = self.A[group], self.b[group]
        weighted = x if w == 1.0 else w * x
        # Of two vectors, a dot product of matrices is twice as fast as broadcasting.
        A += weighted[:, None].dot(x[None])
        b += r[:, None].dot(weighted[None])
        if not self.options.l2_lambda:
            # Rank-one updates keep the rank of a pseudo-inverse.
            self.invalidate(group)

    def sherman_morrison(
        self, group: int, x: Floats, r: Floats, w: float
    ) -> tuple[Floats, float] | None:
        """Rank-one update of A⁻¹ and theta; the error (targets,) and variance it made before.

        None, and no update, where the group must be solved.
        """
        age = self.age.item(group)
        if age >= self.options.refresh_every:
            return None
        A_inv, theta = self.A_inv[group], self.theta[group]
        A_inv_x = A_inv.dot(x)
        variance = x.dot(A_inv_x).item()
        if w * variance > _MAX_VARIANCE:
            self.invalidate(group)
            return None
        gain = (w / (1.0 + w * variance)) * A_inv_x
        error = r - theta.dot(x)
        A_inv -= A_inv_x[:, None].dot(gain[None])
        theta += error[:, None].dot(gain[None])
        self.age[group] = age + 1
        if age + 1 == self.options.refresh_every:
            self.is_stale = True
        return error, variance

    def sums(self) -> list[Floats]:
        """A and b."""
        return [self.A, self.b]

    def add_rows(self, sums: Sequence[Floats], groups: Any, x: Any, r: Any, w: Any) -> None:
        """Add rows x (n, dim) of groups (n,) with r (n, targets) and weights w (n,) to such sums.

        Each row is discounted once per later row, and so are the sums before them: adding rows in
        chunks equals adding them at once. Rows are copied, so the caller passes them in chunks.
        """
        discount = self.options.discount
        if discount < 1.0:
            for total in sums:
                total *= discount ** len(x)
            decay = discount ** numpy.arange(len(x) - 1.0, -1.0, -1.0)
            w = decay if w is None else w * decay
        A, b = sums
        for group, rows in _rows_by_group(groups, len(A)):
            own, rewards = x[rows].astype(float, copy=False), r[rows].astype(float, copy=False)
            if w is not None:
                root = numpy.sqrt(w[rows], dtype=float)[:, None]
                own, rewards = own * root, rewards * root
            # BLAS computes the product of an array with its own transpose at half the cost.
            A[group] += own.T @ own
            b[group] += rewards.T @ own

    def absorb(self, sums: Sequence[Floats], rows: int) -> None:
        """Add the sums of so many rows."""
        if self.options.discount < 1.0:
            Ridge.discount_(self, self.options.discount**rows)
        for total, added in zip((self.A, self.b), sums, strict=True):
            total += added
        # The trace of a sum of squares is 0 where there were no rows.
        self.invalidate(sums[0].trace(axis1=1, axis2=2) != 0.0)

    def discount_(self, gamma: float) -> None:
        """Multiply the sums by `gamma`; the penalty stays."""
        for total in (self.A, self.b):
            total *= gamma
        self.invalidate()

    # -- solving -------------------------------------------------------------------------------

    def invalidate(self, groups: Any = slice(None)) -> None:
        """Mark groups to be solved before they are used again."""
        self.age[groups] = _MUST_BE_SOLVED
        self.is_stale = True

    def refresh(self) -> None:
        """Solve the groups that are due."""
        if self.is_stale:
            self.solve(numpy.flatnonzero(self.age >= self.options.refresh_every))

    def solve(self, groups: Any, explained_A: Any = 0.0, explained_b: Any = 0.0) -> None:
        """Compute A⁻¹ and theta of these groups from their sums, less what others explain."""
        penalty = self.options.l2_lambda * numpy.eye(self.dim)
        A = self.A[groups] - explained_A + penalty
        A_inv, singular = _invert(A, self.options.l2_lambda)
        self.theta[groups] = (self.b[groups] - explained_b) @ A_inv
        self.A_inv[groups] = A_inv
        self.age[groups] = 0
        self.solutions[:] += (len(A), singular)
        self.is_stale = False

    def rearrange(self, kept: Sequence[int], added: int) -> None:
        """Keep some of the groups, in this order, and add others without data."""
        fresh = Ridge(added, self.dim, self.options, self.targets)
        for name in self.per_group:
            both = getattr(self, name)[list(kept)], getattr(fresh, name)
            self._buffers[name] = torch.from_numpy(numpy.concatenate(both))
        self.show_arrays()

    def root(self) -> Floats:
        """A matrix R with R Rᵀ equal to A⁻¹ of the only group."""
        self.refresh()
        try:
            return numpy.linalg.cholesky(self.A_inv[0])
        except numpy.linalg.LinAlgError:
            # Rounding may leave an eigenvalue of zero slightly negative.
            values, vectors = numpy.linalg.eigh(self.A_inv[0])
            return numpy.asarray(vectors * numpy.sqrt(abs(values)))

    def estimates(self) -> Estimates:
        """Of every group, up to date; b and theta of the first target."""
        self.refresh()
        arrays = self.A, self.b[:, 0], self.A_inv, self.theta[:, 0]
        return Estimates(*(array.copy() for array in arrays))

    def coefficients(self) -> Tensor:
        """theta in torch, as it was last solved."""
        return torch.as_tensor(self._buffers["theta"])


def _rows_by_group(groups: Any, count: int) -> Iterator[tuple[int, Any]]:
    """Each group present, and the indices of its rows in order."""
    if count == 1:
        yield 0, slice(None)
        return
    # Sorting is linear for 16-bit keys only.
    keys = groups.astype(numpy.uint16) if count <= 1 << 16 else groups
    order = keys.argsort(kind="stable")
    sizes, stop = numpy.bincount(groups, minlength=count).tolist(), 0
    for group, size in enumerate(sizes):
        stop += size
        if size:
            yield group, order[stop - size : stop]


def _invert(matrices: Floats, penalty: float) -> tuple[Floats, int]:
    """Inverses of positive-definite matrices (g, d, d), and how many were singular to rounding.

    No eigenvalue is below the penalty but by rounding; without one, those of 0 stay 0.
    """
    if penalty:
        # NumPy has no inverse by Cholesky decomposition; its general one takes twice as long.
        factors, failed = torch.linalg.cholesky_ex(torch.from_numpy(matrices))
        if not failed.any():
            return numpy.asarray(torch.cholesky_inverse(factors)), 0
    values, vectors = numpy.linalg.eigh(matrices)
    least = numpy.maximum(penalty, _RANK_TOLERANCE * values[:, -1:])
    is_small = values <= least
    inverted = 1.0 / numpy.where(is_small, least if penalty else numpy.inf, values)
    singular = int(is_small.any(1).sum())
    return (vectors * inverted[:, None]) @ vectors.swapaxes(1, 2), singular
