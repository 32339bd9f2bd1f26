"""The hybrid model of Li et al. (2010, algorithm 2): one ridge regression in blocks.

The rows are [z, e_arm ⊗ x]: z is weighed alike for all arms, x by each arm in its own way. Each arm
regresses both the target and z on its x. What that leaves of z is then a plain row of a shared
regression, so that no matrix is larger than those of the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rlplug_linucb.backend import Array, Backend
from rlplug_linucb.ridge import Ridges
from rlplug_linucb.sums import Sums

__all__ = ["HybridRidges", "HybridSums"]


class HybridRidges(nn.Module):
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
        self.arms = Ridges(
            arms,
            dim,
            targets=1 + shared_dim,
            l2_lambda=l2_lambda,
            discount=discount,
            refresh_every=refresh_every,
        )
        self.shared = Ridges(
            1, shared_dim, l2_lambda=l2_lambda, discount=discount, refresh_every=refresh_every
        )

    @property
    def backend(self) -> Backend:
        """What the buffers are computed with."""
        return self.arms.backend

    @property
    def weight(self) -> Tensor:
        """What the rows of each arm weigh together."""
        return self.arms.weight

    def predict(self, x: Array, z: Array) -> tuple[Array, Array]:
        """Means and variances (n, arms), without the n if it is 1; for x (n, d), z (n, arms, k)."""
        mean, spread, rest = self.by_arm(x, z)
        shared_mean, shared_spread = self.shared.predict(rest)
        return mean + shared_mean[..., 0], spread + shared_spread

    def by_arm(self, x: Array, z: Array) -> tuple[Array, Array, Array]:
        """What the arms' own regressions say: means, variances, and what they leave of z."""
        self._refresh()
        means, spread = self.arms.predict(x)
        return means[..., 0], spread, z - means[..., 1:]

    def learn_row(self, group: int, x: Array, targets: Array, weight: float) -> None:
        """Learn one row x (d,); the targets are the number to predict, followed by z."""
        self.arms.add_row(group, x, targets, weight)
        self.shared.add_row(0, targets[1:], targets[:1], weight)
        if self.is_stale():
            self.arms.invalidate(group)
            self.shared.invalidate(0)
            return
        arms, shared = self.arms.own, self.shared.own
        column, spread = arms.innovation(group, x, targets)
        error = -column[arms.dim :]
        rest = shared.innovation(0, error[1:], error[:1])
        arms.correct(group, column, spread, weight)
        shared.correct(0, *rest, weight / (1.0 + weight * spread))
        if self.is_stale():
            # The shared block is solved from all arms' blocks: none of them should have drifted.
            self.arms.invalidate(slice(None))
            self.shared.invalidate(0)

    def new_sums(self) -> HybridSums:
        """Sums of no rows, as wide as these regressions."""
        return HybridSums(self.arms.new_sums(), self.shared.new_sums())

    def absorb(self, sums: Sequence[Array], rows: int) -> None:
        """Add the sums of so many rows, as `HybridSums.arrays` lists them."""
        half = len(sums) // 2
        self.arms.absorb(sums[:half], rows)
        self.shared.absorb(sums[half:], rows)

    def discount_(self, gamma: float) -> None:
        """Let all that was learned weigh `gamma` times as much; the penalty stays."""
        self.arms.discount_(gamma)
        self.shared.discount_(gamma)

    def is_stale(self) -> bool:
        """Whether anything must be solved before it is used."""
        return self.arms.is_stale() or self.shared.is_stale()

    def fallbacks(self) -> Mapping[str, int]:
        """How often inverses were solved anew, and how often that took jitter or more."""
        shared = self.shared.fallbacks()
        return {name: count + shared[name] for name, count in self.arms.fallbacks().items()}

    def _refresh(self) -> None:
        if not self.is_stale():
            return
        self.arms.refresh()
        self.arms.fold()
        dim = self.arms.dim
        crossed, solved = self.arms.sums[:, dim + 1 :], self.arms.solved[:, dim:]
        gram = torch.einsum("gid,gjd->ij", crossed, solved[:, 1:])
        moment = torch.einsum("gid,gd->i", crossed, solved[:, 0])
        explained = torch.cat([(gram + gram.T) / 2, moment[None]])
        self.shared.solve(slice(None), explained)


class HybridSums:
    """Sums of the arms' blocks and of the shared block, over the same rows."""

    def __init__(self, arms: Sums, shared: Sums) -> None:
        self.arms, self.shared = arms, shared

    def add(self, x: Array, targets: Array, weights: Array | None, groups: Array | None) -> None:
        """Add rows x (n, d); each row's targets are the number to predict, followed by z."""
        self.arms.add(x, targets, weights, groups)
        self.shared.add(targets[:, 1:], targets[:, :1], weights, None)

    def arrays(self) -> list[Array]:
        """The sums themselves, to be added to those of others."""
        return [*self.arms.arrays(), *self.shared.arrays()]

    def finite(self) -> bool:
        """Whether no row brought a NaN, an infinity or a square beyond float64."""
        return self.arms.finite() and self.shared.finite()
