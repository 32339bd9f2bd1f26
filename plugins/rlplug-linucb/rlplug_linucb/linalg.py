"""Linear algebra on NumPy arrays and torch tensors: conversion, grouping, inverse."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy
import torch
from torch import Tensor

__all__ = ["Array", "Inverses", "invert", "namespace", "rows_by_group", "to_array"]

Array: TypeAlias = Any
"""A `numpy.ndarray` on the CPU, where it costs a tenth of torch per call; a tensor elsewhere."""

_JITTERS = (1e-14, 1e-12, 1e-10)
"""Multiples of the mean diagonal to add in turn where Cholesky fails."""


def namespace(array: Array) -> Any:
    """`numpy` or `torch`, whichever the array belongs to."""
    return numpy if isinstance(array, numpy.ndarray) else torch


def to_array(values: Any, like: Array, dtype: str | None = "float64") -> Array:
    """The values as an array of the type and on the device of `like`; None keeps their dtype."""
    if isinstance(like, numpy.ndarray):
        return numpy.asarray(values, dtype)
    kind = None if dtype is None else getattr(torch, dtype)
    return torch.as_tensor(values, dtype=kind, device=like.device)


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
