"""Ridge regressions that learn row by row and forget nothing they were not told to forget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlplug_linucb.backend import Array, Backend
from rlplug_linucb.opened import Opened
from rlplug_linucb.solving import solve
from rlplug_linucb.sums import Sums

__all__ = ["Ridges"]

_STALE, _REFRESHED, _JITTERED, _PSEUDO_INVERTED = range(4)
_FEW = 4
"""Up to so many rows are cheaper one by one than group by group."""


class Ridges(nn.Module):
    """One ridge regression per group, each from `dim` features to `targets` numbers.

    The sums are exact and hold the data alone: the penalty is added when they are solved, so
    that it is never discounted, nor counted once per learner. Inverses and coefficients follow
    them by rank-one updates, and are solved anew before rounding shows, or when many rows came
    at once. All of it is buffers: what `state_dict` saves goes on exactly where it was.
    """

    numpy_devices: ClassVar[frozenset[str]] = frozenset({"cpu"})
    """Devices whose memory NumPy computes on, which is faster than torch for single rows."""

    gram: Tensor
    moment: Tensor
    weight: Tensor
    squared_gram: Tensor | None
    inverse: Tensor
    coefficients: Tensor
    covariance: Tensor | None
    age: Tensor
    stale: Tensor
    counts: Tensor

    def __init__(
        self,
        groups: int,
        dim: int,
        *,
        targets: int = 1,
        l2_lambda: float = 1.0,
        discount: float = 1.0,
        squared_discount: bool = False,
        refresh_every: int = 256,
    ) -> None:
        super().__init__()
        self.groups, self.dim, self.targets = groups, dim, targets
        self.l2_lambda, self.discount = l2_lambda, discount
        self.squared_discount = squared_discount
        self.refresh_every = refresh_every
        square, exact = (groups, dim, dim), torch.float64
        prior = torch.eye(dim, dtype=exact).div(l2_lambda).repeat(groups, 1, 1)
        self.register_buffer("gram", torch.zeros(square, dtype=exact))
        self.register_buffer("moment", torch.zeros((groups, targets, dim), dtype=exact))
        self.register_buffer("weight", torch.zeros(groups, dtype=exact))
        self.register_buffer("inverse", prior)
        self.register_buffer("coefficients", torch.zeros((groups, targets, dim), dtype=exact))
        second = torch.zeros(square, dtype=exact) if squared_discount else None
        self.register_buffer("squared_gram", second)
        self.register_buffer("covariance", prior.clone() if squared_discount else None)
        self.register_buffer("age", torch.zeros(groups, dtype=torch.int64))
        self.register_buffer("stale", torch.zeros(groups, dtype=torch.bool))
        self.register_buffer("counts", torch.zeros(4, dtype=torch.int64))
        self._opened: Opened | None = None

    @property
    def backend(self) -> Backend:
        """What the buffers are computed with."""
        return self.open().backend

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Means (n, k, m) and variances (n, k) before any noise.

        x (n, d) is asked of every group; x (n, k, d) of the one group there is.
        """
        own = self.fresh()
        if x.ndim == 3:
            rows = x.reshape(-1, self.dim)
            mean = rows @ own.coefficients[0].T
            spread = ((rows @ own.width[0]) * rows).sum(-1)
            return mean.reshape(*x.shape[:2], self.targets), abs(spread).reshape(x.shape[:2])
        if len(x) == 1:
            return self._predict_row(own, x[0])
        if len(x) <= _FEW:
            both = [self._predict_row(own, row) for row in x]
            xp = own.backend.xp
            return xp.concatenate([one for one, _ in both]), xp.concatenate(
                [two for _, two in both]
            )
        mean = (x @ own.flat_coefficients.T).reshape(len(x), self.groups, self.targets)
        spread = own.backend.zeros(len(x), self.groups)
        for group in range(self.groups):
            spread[:, group] = ((x @ own.width[group]) * x).sum(-1)
        return mean, abs(spread)

    def _predict_row(self, own: Opened, row: Array) -> tuple[Array, Array]:
        mean = (own.flat_coefficients @ row).reshape(1, self.groups, self.targets)
        # Rounding may leave a variance of nought a trifle below it.
        spread = abs((own.flat_width @ row).reshape(self.groups, self.dim) @ row)
        return mean, spread[None]

    def learn_row(self, group: int, x: Array, targets: Array, weight: float) -> None:
        """Learn one row x (d,) with its targets (m,); the caller has checked them."""
        self.add_row(group, x, targets, weight)
        own = self.open()
        if own.counts[_STALE] and own.stale[group]:
            return
        gain, spread, error = self.innovation(group, x, targets)
        self.correct(group, gain, spread, error, weight)

    def add_row(self, group: int, x: Array, targets: Array, weight: float) -> None:
        """Add one row to the sums alone."""
        own = self.open()
        if self.discount < 1.0:
            self.discount_(self.discount)
        if own.squared_gram is not None:
            own.squared_gram[group] += own.backend.outer(x, own.scratch) * weight
        own.weight[group] += weight
        if weight != 1.0:
            root = weight**0.5
            x, targets = x * root, targets * root
        own.gram[group] += own.backend.outer(x, own.scratch)
        own.moment[group] += targets[:, None] * x

    def innovation(self, group: int, x: Array, targets: Array) -> tuple[Array, float, Array]:
        """What a row would change: A⁻¹x, xᵀA⁻¹x, and its targets less their predictions."""
        own = self.open()
        gain = own.inverse[group] @ x
        return gain, float(gain @ x), targets - own.coefficients[group] @ x

    def correct(self, group: int, gain: Array, spread: float, error: Array, weight: float) -> None:
        """Move inverse and coefficients by one row (Sherman and Morrison's formula)."""
        own = self.open()
        share = weight / (1.0 + weight * spread)
        own.coefficients[group] += error[:, None] * (gain * share)
        own.inverse[group] -= own.backend.outer(gain * share**0.5, own.scratch)
        own.age[group] += 1
        if own.age[group] >= self.refresh_every:
            self.invalidate(group)

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
        own = self.open()
        if self.discount < 1.0:
            self.discount_(self.discount**rows)
        for array, more in zip(own.sums, sums, strict=True):
            array += more
        self.invalidate(sums[2] != 0)

    def discount_(self, gamma: float) -> None:
        """Let all that was learned weigh `gamma` times as much; the penalty stays."""
        own = self.open()
        own.gram *= gamma
        own.moment *= gamma
        own.weight *= gamma
        if own.squared_gram is not None:
            own.squared_gram *= gamma * gamma
        self.invalidate(slice(None))

    def invalidate(self, groups: Any) -> None:
        """Have the inverses of these groups solved anew before they are used again."""
        own = self.open()
        own.stale[groups] = True
        own.counts[_STALE] = own.stale.sum()

    def fresh(self) -> Opened:
        """The buffers, with nothing stale among what follows from the sums."""
        own = self.open()
        if own.counts[_STALE]:
            self.solve(self.stale.nonzero().flatten())
        return own

    def solve(self, groups: Tensor, less: tuple[Tensor, Tensor] | None = None) -> None:
        """Solve these groups from their sums, of which `less` (gram, moment) is taken first."""
        gram, moment = self.gram[groups], self.moment[groups]
        if less is not None:
            gram, moment = gram - less[0], moment - less[1]
        gram.diagonal(dim1=1, dim2=2).add_(self.l2_lambda)
        solved = solve(gram, moment)
        self.inverse[groups] = solved.inverse
        self.coefficients[groups] = solved.coefficients
        if self.covariance is not None and self.squared_gram is not None:
            squared = self.squared_gram[groups]
            squared.diagonal(dim1=1, dim2=2).add_(self.l2_lambda)
            self.covariance[groups] = solved.inverse @ squared @ solved.inverse
        self.age[groups] = 0
        self.stale[groups] = False
        self.counts[_STALE] = self.stale.sum()
        self.counts[_REFRESHED] += len(groups)
        self.counts[_JITTERED] += solved.jittered
        self.counts[_PSEUDO_INVERTED] += solved.pseudo_inverted

    def is_stale(self) -> bool:
        """Whether anything must be solved before it is used."""
        return bool(self.open().counts[_STALE])

    def fallbacks(self) -> Mapping[str, int]:
        """How often inverses were solved anew, and how often that took jitter or more."""
        counts = self.open().counts
        return {
            "refreshed": int(counts[_REFRESHED]),
            "jittered": int(counts[_JITTERED]),
            "pseudo_inverted": int(counts[_PSEUDO_INVERTED]),
        }

    # -- the buffers as arrays -----------------------------------------------------------------

    def open(self) -> Opened:
        """The buffers as the backend's arrays, opened again after they have moved."""
        own = self._opened
        if own is None:
            own = self._opened = Opened(self)
        return own

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Ridges:
        # Sums in float32 would lose rows: `.to(dtype)` and `.half()` move, but round nothing.
        def moved(tensor: Tensor) -> Tensor:
            answer = fn(tensor)
            return answer if answer.dtype == tensor.dtype else tensor.to(answer.device)

        self._opened = None
        super()._apply(moved, recurse)  # type: ignore[no-untyped-call] # torch leaves it untyped
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._opened = None
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # Views that were copied would no longer be views.
        return {**self.__dict__, "_opened": None}
