"""The hybrid model of Li et al. (2010, algorithm 2): one ridge regression, solved in blocks.

The rows are [z, e_arm ⊗ x]: z has coefficients that all arms share, x has its own for each arm.
Each arm regresses both the reward and z on its x. A shared regression on what that leaves of z
completes the model, so that no matrix is larger than a block.

Without a penalty the pseudo-inverse of the whole is taken: it is not made of those of blocks. Then
`solved` of each block holds what the whole's pseudo-inverse P and coefficients have for it: P_xx,
the arm's coefficients and P_zx for an arm, P_zz and the shared coefficients for the shared block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplug_linucb.arrays import (
    Array,
    Estimates,
    pseudo_inverse_root,
    pseudo_invert,
    range_of,
    read_only,
    row_dots,
)
from rlplug_linucb.linucb import RidgeRegressions
from rlplug_linucb.sums import Sums

__all__ = ["HybridRegressions", "HybridSums"]


class HybridRegressions(nn.Module):
    """A regression per arm on x, and one on z that all arms share."""

    def __init__(
        self,
        arms: int,
        dim: int,
        shared_dim: int,
        *,
        l2_lambda: float = 1.0,
        discount: float = 1.0,
        refresh_every: int = 1000,
    ) -> None:
        super().__init__()
        self.penalized = l2_lambda > 0.0
        self.arms = RidgeRegressions(
            arms,
            dim,
            targets=1 + shared_dim,
            l2_lambda=l2_lambda,
            discount=discount,
            refresh_every=refresh_every,
        )
        self.shared = RidgeRegressions(
            1, shared_dim, l2_lambda=l2_lambda, discount=discount, refresh_every=refresh_every
        )

    @property
    def weight(self) -> Tensor:
        """Σ w of each arm."""
        return self.arms.weight

    @property
    def on_cpu(self) -> bool:
        """Whether the buffers are computed on with NumPy."""
        return self.arms.on_cpu

    def to_array(self, values: Any, dtype: str | None = "float64") -> Array:
        """The values as an array of the same type and device as the sums."""
        return self.arms.to_array(values, dtype)

    def predict(self, x: Array, z: Array, groups: Array | None = None) -> tuple[Array, Array]:
        """Means and variances (n, arms) for x (n, dim) and z (n, arms, shared_dim).

        `groups` (n, arms) are the arms' regressions, if they are not all, in order.
        """
        mean, variance, z_by_arm = self.predict_by_arm(x, z, groups)
        if self.penalized:
            shared_mean, shared_variance = self.shared.predict(z_by_arm)
            return mean + shared_mean[..., 0], variance + shared_variance
        shared_mean, shared_variance = self.shared.predict(z)
        # z is (n, 1, shared_dim) where it is the same for all arms.
        twice = 2.0 * row_dots(z, z_by_arm)
        # Rounding may leave a variance of zero slightly negative.
        return mean + shared_mean[..., 0], abs(variance + twice + shared_variance)

    def predict_by_arm(
        self, x: Array, z: Array, groups: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Means and variances (n, arms) of the arms' own regressions, and their residual of z.

        Without a penalty P_zx x is in place of the residual.
        """
        self.refresh()
        if groups is None:
            means, variance = self.arms.predict(x)
        else:
            means, variance = self.arms.predict_by(groups, x)
        return means[..., 0], variance, z - means[..., 1:] if self.penalized else means[..., 1:]

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Those of each arm (arms, dim) and those that all share (shared_dim,), as last solved."""
        own, shared = self.arms.coefficients(), self.shared.coefficients()[0, 0]
        return (own[:, 0] - shared @ own[:, 1:] if self.penalized else own[:, 0]), shared

    def root(self) -> Array:
        """Without a penalty: R (d, d) with R Rᵀ = P, for rows [z, e_arm ⊗ x] of all arms."""
        return self.to_array(pseudo_inverse_root(self._whole()[:-1]))

    def update(self, group: int, x: Array, r: Array, w: float = 1.0) -> None:
        """Learn one row x (dim,) of an arm; r is the reward, followed by z."""
        self.arms.add(group, x, r, w)
        self.shared.add(0, r[1:], r[:1], w)
        if self.is_stale():
            self.arms.invalidate(group)
            self.shared.invalidate(0)
            return
        error, variance = self.arms.sherman_morrison(group, x, r, w)
        self.shared.sherman_morrison(0, error[1:], error[:1], w / (1.0 + w * variance))
        if self.is_stale():
            # The shared block is solved from all arms' blocks, which must then be exact.
            self.arms.invalidate(slice(None))
            self.shared.invalidate(0)

    def absorb(self, sums: Sequence[Array], rows: int) -> None:
        """Add the sums of so many rows, in the order of `HybridSums.arrays`."""
        half = len(sums) // 2
        self.arms.absorb(sums[:half], rows)
        self.shared.absorb(sums[half:], rows)

    def forget(self, arm: int) -> None:
        """Make an arm what it was before its first row; the shared regression keeps what it told.

        The arm's coefficients are integrated out: what they explain leaves the shared sums.
        """
        self.shared.add_recent()
        sums = self.shared.sums[0]
        if self.penalized:
            self.refresh()
            sums -= self._explained([arm])
        else:
            # What no arm explains, less what is only rounding, and what the other arms do.
            others = [one for one in range(self.arms.groups) if one != arm]
            left = sums - self._explained(slice(None))
            found = range_of(left[:-1], torch.linalg.matrix_norm(sums[:-1]))
            left[:-1] = found @ left[:-1]
            sums[:] = left @ found + self._explained(others)
        self.shared.invalidate(0)
        self.arms.forget(arm)

    def rearrange(self, sources: Sequence[int | None]) -> None:
        """Make arm i what arm `sources[i]` was, or one without data where that is None."""
        for arm in set(range(self.arms.groups)) - set(sources):
            self.forget(arm)
        self.arms.rearrange(sources)

    def discount_(self, gamma: float) -> None:
        """Multiply the sums by `gamma`; the penalty stays."""
        self.arms.discount_(gamma)
        self.shared.discount_(gamma)

    def estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta of every arm, given the shared coefficients beta of `shared`."""
        self.refresh()
        own = self.arms.estimates()
        theta = read_only(self.to_array(self.coefficients()[0]))
        if self.penalized:
            return own._replace(theta=theta)
        A_inv = self.to_array(pseudo_invert(self.arms.sums[:, : self.arms.dim]).matrices)
        return own._replace(A_inv=read_only(A_inv), theta=theta)

    def shared_estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta of the shared regression on what the arms leave of z (A₀, β).

        Without a penalty A⁻¹ and theta are those of z in the pseudo-inverse of the whole.
        """
        self.refresh()
        own, explained = self.shared.estimates(), self.to_array(self._explained(slice(None)))
        return own._replace(
            A=read_only(own.A[0] - explained[:-1]),
            b=read_only(own.b[0] - explained[-1]),
            A_inv=read_only(own.A_inv[0]),
            theta=read_only(own.theta[0]),
        )

    def is_stale(self) -> bool:
        """Whether any block must be solved before it is used."""
        return self.arms.is_stale() or self.shared.is_stale()

    def fallbacks(self) -> Mapping[str, int]:
        """How many blocks were solved for, and for how many Cholesky needed a fallback."""
        shared = self.shared.fallbacks()
        return {name: count + shared[name] for name, count in self.arms.fallbacks().items()}

    def refresh(self) -> None:
        """Solve what is stale."""
        if not self.is_stale():
            return
        if self.penalized:
            self.arms.refresh()
            self.shared.solve(slice(None), self._explained(slice(None)))
        else:
            self._solve_whole()

    def _solve_whole(self) -> None:
        """Coefficients and pseudo-inverse of all blocks at once."""
        whole, width = self._whole(), self.shared.dim
        shape = self.arms.groups, self.arms.dim
        (P,), _, singular = pseudo_invert(whole[None, :-1])
        theta = P @ whole[-1]
        P_zx = P[:width, width:].unflatten(1, shape).movedim(1, 0)
        P_xx = P[width:, width:].unflatten(1, shape).unflatten(0, shape)
        own = P_xx.diagonal(dim1=0, dim2=2).movedim(-1, 0)
        of_arms = theta[width:].unflatten(0, shape)
        self.arms.solved[:] = torch.cat([own, of_arms[:, None], P_zx], 1)
        self.shared.solved[0] = torch.cat([P[:width, :width], theta[None, :width]])
        self.arms.solved_now(slice(None))
        self.shared.solved_now(slice(None), pseudo_inverted=singular)

    def _whole(self) -> Tensor:
        """Σ w u uᵀ of the rows u = [z, e_arm ⊗ x], and below it Σ w r u."""
        self.arms.add_recent()
        self.shared.add_recent()
        dim, width = self.arms.dim, self.shared.dim
        shared, of_arms = self.shared.sums[0], self.arms.sums
        z_x = torch.cat(list(of_arms[:, dim + 1 :]), 1)
        own: Tensor = torch.block_diag(*of_arms[:, :dim])  # type: ignore[no-untyped-call] # torch leaves it untyped
        rows = [
            torch.cat([shared[:width], z_x], 1),
            torch.cat([z_x.mT, own], 1),
            torch.cat([shared[width:], of_arms[:, dim].reshape(1, -1)], 1),
        ]
        return torch.cat(rows)

    def _explained(self, arms: slice | list[int]) -> Tensor:
        """What these arms' regressions explain of the shared sums.

        With a penalty they must be solved.
        """
        self.arms.add_recent()
        dim = self.arms.dim
        sums, solved = self.arms.sums[arms], self.arms.solved[arms, dim:]
        crossed = sums[:, dim + 1 :]
        if not self.penalized:
            solved = sums[:, dim:] @ pseudo_invert(sums[:, :dim]).matrices
        A = torch.einsum("gid,gjd->ij", crossed, solved[:, 1:])
        b = torch.einsum("gid,gd->i", crossed, solved[:, 0])
        return torch.cat([(A + A.T) / 2, b[None]])


class HybridSums:
    """Sums of the arms' blocks and of the shared block, over the same rows."""

    def __init__(self, regressions: HybridRegressions) -> None:
        self.arms, self.shared = Sums(regressions.arms), Sums(regressions.shared)

    def add(self, x: Array, r: Array, weights: Array | None, groups: Array | None) -> None:
        """Add rows x (n, dim); r (n, 1 + shared_dim) is each row's reward, followed by z."""
        self.arms.add(x, r, weights, groups)
        self.shared.add(r[:, 1:], r[:, :1], weights, None)

    def arrays(self) -> list[Array]:
        """The sums of the arms' blocks, then those of the shared one."""
        return [*self.arms.arrays(), *self.shared.arrays()]

    def finite(self) -> bool:
        """Whether all sums are finite."""
        return self.arms.finite() and self.shared.finite()
