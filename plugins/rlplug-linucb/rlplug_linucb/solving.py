"""Invert ridge matrices by Cholesky; what to do where rounding has made one indefinite."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Solved", "solve"]

_JITTERS = (1e-14, 1e-12, 1e-10)
"""Shares of the mean diagonal that are added in turn."""


class Solved(NamedTuple):
    """Inverses and coefficients of ridge regressions, and how many needed which fallback."""

    inverse: Tensor
    coefficients: Tensor
    jittered: int
    pseudo_inverted: int


def solve(matrices: Tensor, moments: Tensor) -> Solved:
    """Solve (g, d, d) symmetric positive matrices for (g, m, d) right-hand sides."""
    factors, failures = torch.linalg.cholesky_ex(matrices)
    failed = bool(failures.any())
    if failed:
        # What failed is done below; until then it must not fail those beside it.
        one = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
        factors = torch.where((failures == 0)[:, None, None], factors, one)
    inverse = torch.cholesky_inverse(factors)
    coefficients = torch.cholesky_solve(moments.mT, factors).mT
    if not failed and math.isfinite(float(inverse.sum())):
        return Solved(inverse, coefficients, 0, 0)
    usable = (failures == 0) & inverse.isfinite().flatten(1).all(1)
    jittered = pseudo_inverted = 0
    for index in (~usable).nonzero().flatten().tolist():
        rescued = _with_jitter(matrices[index])
        if rescued is None:
            pseudo_inverted += 1
            rescued = torch.linalg.pinv(matrices[index], hermitian=True)
        else:
            jittered += 1
        inverse[index] = rescued
        coefficients[index] = moments[index] @ rescued
    return Solved(inverse, coefficients, jittered, pseudo_inverted)


def _with_jitter(matrix: Tensor) -> Tensor | None:
    """The inverse of a matrix with a little more on its diagonal; None if none helps."""
    size = matrix.diagonal().mean()
    for share in _JITTERS:
        more = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device) * (share * size)
        factor, failure = torch.linalg.cholesky_ex(matrix + more)
        if int(failure) == 0:
            inverse = torch.cholesky_inverse(factor)
            if bool(inverse.isfinite().all()):
                return inverse
    return None
