"""NumPy arrays and torch tensors: views of buffers, estimates to read, products, inverses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeAlias

import numpy
import torch
from torch import Tensor, nn

from rlplug.spaces import as_array

__all__ = [
    "Array",
    "BufferViews",
    "Estimates",
    "HasEstimates",
    "Inverses",
    "invert",
    "namespace",
    "pseudo_inverse_root",
    "pseudo_invert",
    "range_of",
    "read_only",
    "row_dots",
    "rows_by_group",
    "to_array",
]

Array: TypeAlias = Any
"""A `numpy.ndarray` on the CPU, where it costs a tenth of torch per call; a tensor elsewhere."""

# vecdot came with NumPy 2; einsum takes twice as long.
_vecdot: Any = getattr(numpy, "vecdot", functools.partial(numpy.einsum, "...d,...d->..."))

_JITTERS = (1e-14, 1e-12, 1e-10)
"""Multiples of the mean diagonal to add in turn where Cholesky fails."""

_RANK_TOLERANCE = 1e-13
"""Eigenvalues that are smaller, relative to the largest, count as 0 where there is no penalty."""


class BufferViews(nn.Module):
    """Float64 buffers with array views as plain attributes: to look up a buffer costs microseconds.

    Views are renewed when buffers are moved, loaded or copied.
    """

    def make_views(self) -> dict[str, Any]:
        """The views by name; called at the end of `__init__` by `renew_views`."""
        raise TypeError(f"{type(self).__name__} must define make_views")

    def renew_views(self) -> None:
        """Set views of the buffers as attributes."""
        self.views = self.make_views()
        self.__dict__.update(self.views)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.to(dtype)` and `.half()` would round the sums: they move buffers, but keep their dtype.
        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.renew_views()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.renew_views()

    def __getstate__(self) -> dict[str, Any]:
        # A copied view would no longer be a view.
        names = {"views", *self.views}
        return {name: value for name, value in self.__dict__.items() if name not in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.renew_views()


def namespace(array: Array) -> Any:
    """`numpy` or `torch`, whichever the array belongs to."""
    return numpy if isinstance(array, numpy.ndarray) else torch


def to_array(values: Any, like: Array, dtype: str | None = "float64") -> Array:
    """The values as an array of the type and on the device of `like`; None keeps their dtype."""
    if isinstance(like, numpy.ndarray):
        return numpy.asarray(as_array(values), dtype)
    kind = None if dtype is None else getattr(torch, dtype)
    # Sums are no part of the graph that values may come from.
    return torch.as_tensor(values, dtype=kind, device=like.device).detach()


def row_dots(x: Array, y: Array) -> Array:
    """The inner product of each row of x (..., n, d) with that of y."""
    return _vecdot(x, y) if isinstance(x, numpy.ndarray) else (x * y).sum(-1)


def rows_by_group(groups: Array, count: int) -> tuple[Array, list[tuple[int, int]]]:
    """The order that sorts rows by group, and (group, number of rows) for each group present."""
    if isinstance(groups, Tensor):
        groups = groups.cpu().numpy()
    # Sorting is linear for 16-bit keys only.
    keys = groups.astype(numpy.uint16) if count <= 1 << 16 else groups
    sizes = numpy.bincount(groups, minlength=count)
    present = sizes.nonzero()[0]
    order = keys.argsort(kind="stable")
    return order, list(zip(present.tolist(), sizes[present].tolist(), strict=True))


class Inverses(NamedTuple):
    """Inverses (g, d, d) of positive-definite matrices, and how many needed which fallback."""

    matrices: Tensor
    jittered: int
    pseudo_inverted: int


def invert(matrices: Tensor) -> Inverses:
    """Invert symmetric positive-definite matrices (g, d, d) by Cholesky decomposition.

    A matrix that rounding has made indefinite gets jitter on its diagonal, or else its
    pseudo-inverse.
    """
    factors, failures = torch.linalg.cholesky_ex(matrices)
    failed = bool(failures.any())
    if failed:
        # `cholesky_inverse` must not fail on a whole batch because of one matrix.
        identity = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
        factors = torch.where((failures == 0)[:, None, None], factors, identity)
    inverses = torch.cholesky_inverse(factors)
    if not failed and math.isfinite(float(inverses.sum())):
        return Inverses(inverses, 0, 0)
    usable = (failures == 0) & inverses.isfinite().flatten(1).all(1)
    jittered = pseudo_inverted = 0
    for index in (~usable).nonzero().flatten().tolist():
        inverse = _invert_with_jitter(matrices[index])
        if inverse is None:
            pseudo_inverted += 1
            inverse = torch.linalg.pinv(matrices[index], hermitian=True)
        else:
            jittered += 1
        inverses[index] = inverse
    return Inverses(inverses, jittered, pseudo_inverted)


def pseudo_invert(matrices: Tensor) -> Inverses:
    """Pseudo-inverses of positive-semidefinite matrices (g, d, d); singular ones are counted."""
    values, vectors = torch.linalg.eigh(matrices)
    zero = _are_zero(values)
    inverted = torch.where(zero, 0.0, 1.0 / torch.where(zero, 1.0, values))
    inverses = vectors * inverted[:, None] @ vectors.mT
    return Inverses(inverses, 0, int(zero.any(1).sum()))


def pseudo_inverse_root(matrix: Tensor) -> Tensor:
    """A matrix R with R Rᵀ equal to the pseudo-inverse of a positive-semidefinite matrix (d, d)."""
    values, vectors = torch.linalg.eigh(matrix)
    zero = _are_zero(values)
    root: Tensor = vectors * torch.where(zero, 0.0, torch.where(zero, 1.0, values).rsqrt())
    return root


def range_of(matrix: Tensor, scale: Tensor) -> Tensor:
    """Projection (d, d) on the range of a difference of two matrices, the larger of this scale."""
    values, vectors = torch.linalg.eigh(matrix)
    found: Tensor = vectors * (values > _RANK_TOLERANCE * scale)
    return found @ found.mT


def _are_zero(values: Tensor) -> Tensor:
    """Which eigenvalues (..., d), in ascending order, are none but for rounding."""
    return values <= _RANK_TOLERANCE * values[..., -1:]


def _invert_with_jitter(matrix: Tensor) -> Tensor | None:
    """The inverse of a matrix with jitter on its diagonal; None if no jitter suffices."""
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    scale = matrix.diagonal().mean()
    for jitter in _JITTERS:
        factor, failure = torch.linalg.cholesky_ex(matrix + jitter * scale * identity)
        if int(failure) == 0:
            inverse = torch.cholesky_inverse(factor)
            if bool(inverse.isfinite().all()):
                return inverse
    return None


class Estimates(NamedTuple):
    """The sums and the solution of ridge regressions on d features, for each arm or for all.

    The symbols are those of Li et al. (2010).
    """

    A: Array
    """Σ w x xᵀ without the penalty, (arms, d, d)."""
    b: Array
    """Σ w r x, (arms, d)."""
    A_inv: Array
    """(A + λI)⁻¹, or D-LinUCB's matrix with `squared_discount`, (arms, d, d)."""
    theta: Array
    """Coefficients, (arms, d)."""


class HasEstimates:
    """The estimates as attributes. A joint model has no axis of arms: (d, d) and (d,).

    They are copies of the moment, and cannot be set or written.
    """

    def estimates(self) -> Estimates:
        """All of them at once."""
        raise TypeError(f"{type(self).__name__} must define estimates")

    @property
    def A(self) -> Array:  # noqa: N802 # the paper's name
        """Σ w x xᵀ of each arm, without the penalty."""
        return self.estimates().A

    @property
    def b(self) -> Array:
        """Σ w r x of each arm."""
        return self.estimates().b

    @property
    def A_inv(self) -> Array:  # noqa: N802 # the paper's name
        """(A + λI)⁻¹ of each arm."""
        return self.estimates().A_inv

    @property
    def theta(self) -> Array:
        """The coefficients of each arm's regression."""
        return self.estimates().theta


def read_only(array: Array) -> Array:
    """A copy; one in NumPy cannot be written."""
    if not isinstance(array, numpy.ndarray):
        return array.clone()
    copied = array.copy()
    copied.setflags(write=False)
    return copied
