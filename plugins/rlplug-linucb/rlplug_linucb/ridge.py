"""Ridge regressions that learn row by row and forget nothing they were not told to forget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlplug_linucb.backend import Array, Backend
from rlplug_linucb.movable import Movable
from rlplug_linucb.opened import RECENT_ROWS, STALE, Opened
from rlplug_linucb.solving import solve
from rlplug_linucb.sums import Sums

__all__ = ["Ridges"]

_REFRESHED, _JITTERED, _PSEUDO_INVERTED = range(2, 5)
"""Where `counts` counts groups that were solved, and by which means."""


class Ridges(Movable):
    """One ridge regression per group, each from `dim` features to `targets` numbers.

    The sums are exact and hold the data alone: the penalty is added when they are solved, so
    that it is never discounted, nor counted once per learner. What is solved follows them by
    rank-one updates, and is solved anew before rounding shows, or when many rows came at once.
    All of it is buffers: what `state_dict` saves goes on exactly where it was.
    """

    numpy_devices: ClassVar[frozenset[str]] = frozenset({"cpu"})
    """Devices whose memory NumPy computes on, which is faster than torch for single rows."""

    sums: Tensor
    """Per group A = Σ x xᵀ, and below it b = Σ target xᵀ; the recent rows are still missing."""
    squared_sums: Tensor | None
    """Σ x xᵀ discounted twice, for D-LinUCB."""
    weight: Tensor
    """What the rows of each group weigh together."""
    recent: Tensor
    """Rows [x, targets] of the last updates, each times the root of its weight."""
    recent_groups: Tensor
    solved: Tensor
    """Per group (A + λI)⁻¹, and below it the coefficients."""
    widened: Tensor | None
    """As `solved`, with the matrix that D-LinUCB takes for the inverse."""
    penalty: Tensor
    age: Tensor
    """Rank-one updates since each group was solved."""
    stale: Tensor
    counts: Tensor
    own: Opened
    """The buffers as arrays."""

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
        exact, high = torch.float64, dim + targets
        prior = torch.zeros((groups, high, dim), dtype=exact)
        prior.diagonal(dim1=1, dim2=2).fill_(1.0 / l2_lambda)
        squared = torch.zeros((groups, dim, dim), dtype=exact) if squared_discount else None
        self.register_buffer("sums", torch.zeros((groups, high, dim), dtype=exact))
        self.register_buffer("squared_sums", squared)
        self.register_buffer("weight", torch.zeros(groups, dtype=exact))
        penalty = torch.eye(dim, dtype=exact) * l2_lambda
        self.register_buffer("penalty", penalty, persistent=False)
        self.register_buffer("recent", torch.zeros((RECENT_ROWS, high), dtype=exact))
        self.register_buffer("recent_groups", torch.zeros(RECENT_ROWS, dtype=torch.int64))
        self.register_buffer("solved", prior)
        self.register_buffer("widened", prior.clone() if squared_discount else None)
        self.register_buffer("age", torch.zeros(groups, dtype=torch.int64))
        self.register_buffer("stale", torch.zeros(groups, dtype=torch.bool))
        self.register_buffer("counts", torch.zeros(5, dtype=torch.int64))
        self.reopen()

    def reopen(self) -> None:
        """Take hold of the buffers where they are now."""
        self.own = Opened(self)

    @property
    def backend(self) -> Backend:
        """What the buffers are computed with."""
        return self.own.backend

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Means (n, k, m) and variances (n, k) before any noise; without the n if it is 1.

        x (n, d) is asked of every group; x (n, k, d) of the one group there is.
        """
        own = self.own
        if own.counts[STALE]:
            self.refresh()
        return own.predict(x)

    def learn_row(self, group: int, x: Array, targets: Array, weight: float) -> None:
        """Learn one row x (d,) with its targets (m,); the caller has checked them."""
        self.own.learn_row(group, x, targets, weight)

    def add_row(self, group: int, x: Array, targets: Array, weight: float) -> None:
        """Add one row to the sums alone."""
        self.own.add_row(group, x, targets, weight)

    def fold(self) -> None:
        """Bring the recent rows into the sums."""
        self.own.fold()

    def new_sums(self) -> Sums:
        """Sums of no rows, as wide as these regressions."""
        return Sums(
            self.backend,
            groups=self.groups,
            dim=self.dim,
            targets=self.targets,
            discount=self.discount,
            squared_discount=self.squared_discount,
        )

    def absorb(self, sums: Sequence[Array], rows: int) -> None:
        """Add the sums of so many rows, as `Sums.arrays` lists them."""
        own = self.own
        if self.discount < 1.0:
            self.discount_(self.discount**rows)
        for array, more in zip(own.totals, sums, strict=True):
            array += more
        self.invalidate(sums[0] != 0)

    def discount_(self, gamma: float) -> None:
        """Let all that was learned weigh `gamma` times as much; the penalty stays."""
        self.own.discount_(gamma)

    def invalidate(self, groups: Any) -> None:
        """Have these groups solved anew before they are used again."""
        self.own.invalidate(groups)

    def refresh(self) -> None:
        """Solve what is stale."""
        stale: list[int] = self.stale.nonzero().flatten().tolist()
        # Slices are views: an index would copy, and cost more than solving small matrices.
        if len(stale) == self.groups:
            self.solve(slice(None))
        elif len(stale) == 1:
            self.solve(slice(stale[0], stale[0] + 1))
        else:
            self.solve(stale)

    def solve(self, groups: slice | list[int], less: Tensor | None = None) -> None:
        """Solve these groups from their sums, of which `less` is taken first."""
        self.fold()
        own, dim = self.own, self.dim
        sums = self.sums[groups]
        gram = sums[:, :dim] + self.penalty
        moment = sums[:, dim:]
        if less is not None:
            gram, moment = gram - less[:dim], moment - less[dim:]
        solved = solve(gram, moment)
        self.solved[groups, :dim] = solved.inverse
        self.solved[groups, dim:] = solved.coefficients
        if self.widened is not None and self.squared_sums is not None:
            squared = self.squared_sums[groups] + self.penalty
            self.widened[groups, :dim] = solved.inverse @ squared @ solved.inverse
            self.widened[groups, dim:] = solved.coefficients
        own.age[groups] = 0
        own.stale[groups] = False
        own.counts[STALE] = own.stale.sum()
        own.counts[_REFRESHED] += len(gram)
        own.counts[_JITTERED] += solved.jittered
        own.counts[_PSEUDO_INVERTED] += solved.pseudo_inverted

    def is_stale(self) -> bool:
        """Whether anything must be solved before it is used."""
        return bool(self.own.counts[STALE])

    def fallbacks(self) -> Mapping[str, int]:
        """How often groups were solved anew, and how often that took jitter or more."""
        counts = self.own.counts
        return {
            "refreshed": int(counts[_REFRESHED]),
            "jittered": int(counts[_JITTERED]),
            "pseudo_inverted": int(counts[_PSEUDO_INVERTED]),
        }
