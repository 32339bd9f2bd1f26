"""The hybrid model of Li et al. (2010, algorithm 2): one ridge regression, solved in blocks.

The rows are [z, e_arm ⊗ x]: z has coefficients that all arms share, x has its own for each arm.
Each arm regresses both the reward and z on its x. A shared regression on what that leaves of z
completes the model, so that no matrix is larger than a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplug_linucb.arrays import Array, Estimates, read_only
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
        mean, variance, z_residual = self.predict_by_arm(x, z, groups)
        shared_mean, shared_variance = self.shared.predict(z_residual)
        return mean + shared_mean[..., 0], variance + shared_variance

    def predict_by_arm(
        self, x: Array, z: Array, groups: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Means and variances (n, arms) of the arms' own regressions, and their residual of z."""
        self._refresh()
        if groups is None:
            means, variance = self.arms.predict(x)
        else:
            means, variance = self.arms.predict_by(groups, x)
        return means[..., 0], variance, z - means[..., 1:]

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
        self._refresh()
        self.shared.add_recent()
        self.shared.sums[0] -= self._explained([arm])
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
        self._refresh()
        beta, own = self.shared.theta[0, 0], self.arms.estimates()
        theta = own.theta - beta @ self.arms.theta[:, 1:]
        return own._replace(theta=read_only(theta))

    def shared_estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta of the shared regression on what the arms leave of z (A₀, β)."""
        self._refresh()
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

    def _refresh(self) -> None:
        if not self.is_stale():
            return
        self.arms.refresh()
        self.shared.solve(slice(None), self._explained(slice(None)))

    def _explained(self, arms: slice | list[int]) -> Tensor:
        """What these arms' regressions explain of the shared sums; they must be solved."""
        self.arms.add_recent()
        dim = self.arms.dim
        crossed, solved = self.arms.sums[arms, dim + 1 :], self.arms.solved[arms, dim:]
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
