"""Measure gradients, and clip them by what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlplug.optim.sparse import numbers_of

__all__ = ["Combine", "Norms", "clip", "global_norm", "measure", "zero_nonfinite"]

Combine: TypeAlias = Callable[[Tensor, float], Tensor]
"""Makes norms of whole gradients of those of their shards, with the type of the norm."""


def global_norm(gradients: list[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all gradients taken as one vector, 0-d, on their device."""
    return _norm(torch.stack(_each(numbers_of(gradients), norm_type)), norm_type)


@dataclass
class Norms:
    """The norm of all gradients as one vector, and that of each."""

    gradients: list[Tensor]
    norm_type: float
    flat: NDArray[Any] | None
    total: Tensor | float = 0.0
    """A number where reading it waits for nobody."""
    combine: Combine | None = None
    """Set where the gradients are shards."""

    @cached_property
    def each(self) -> Tensor:
        """The norms one by one."""
        if self.combine is None:
            return torch.stack(_each(self.gradients, self.norm_type))
        # A shard without numbers has no largest one.
        own = [
            torch.linalg.vector_norm(one, self.norm_type) if one.numel() else one.sum()
            for one in self.gradients
        ]
        return self.combine(torch.stack(own), self.norm_type)


def measure(
    gradients: list[Tensor],
    norm_type: float = 2.0,
    flat: NDArray[Any] | None = None,
    combine: Combine | None = None,
) -> Norms:
    """Their norms; they are finite exactly if every number is.

    `flat` is an array of all their numbers and no others, in the same memory. Sparse gradients are
    to be coalesced before.
    """
    if flat is None:
        gradients = numbers_of(gradients)
    norms = Norms(gradients, norm_type, flat, combine=combine)
    # NumPy needs a third of the time that torch does. What is not finite is for the caller to see:
    # `dot` would warn of it.
    if combine is not None:
        norms.total = _norm(norms.each, norm_type)
    elif norm_type == 2.0 and flat is not None:
        norms.total = math.sqrt(numpy.vdot(flat, flat))
    elif norm_type == 2.0 and all(map(_is_numpys, gradients)):
        norms.total = math.sqrt(
            sum(float(numpy.vdot(one, one)) for one in map(_numbers, gradients))
        )
    else:
        norms.total = _norm(norms.each, norm_type)
    return norms


def clip(gradients: list[Tensor], norms: Norms, limit: float, by: str) -> Tensor | float:
    """Clip in place, by `global_norm`, each tensor's `norm`, or `value`; the global norm after."""
    if norms.flat is None:
        gradients = numbers_of(gradients)
    if by == "value":
        torch._foreach_clamp_min_(gradients, -limit)
        torch._foreach_clamp_max_(gradients, limit)
        after = Norms(gradients, norms.norm_type, None, combine=norms.combine)
        return _norm(after.each, norms.norm_type)
    if by == "norm":
        factors = (limit / (norms.each + 1e-6)).clamp_(max=1.0)
        torch._foreach_mul_(gradients, list(factors.unbind()))
        return _norm(norms.each * factors, norms.norm_type)
    total = norms.total
    if isinstance(total, float):
        # Most steps need no arithmetic.
        share = min(limit / (total + 1e-6), 1.0)
        if share < 1.0 and norms.flat is not None:
            norms.flat *= share
        elif share < 1.0:
            torch._foreach_mul_(gradients, share)
        return total * share
    factor = (limit / (total + 1e-6)).clamp_(max=1.0)
    torch._foreach_mul_(gradients, factor)
    return total * factor


def zero_nonfinite(gradients: list[Tensor]) -> None:
    """Put 0 in place of NaN and inf."""
    for gradient in numbers_of(gradients):
        gradient.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _each(gradients: list[Tensor], norm_type: float) -> tuple[Tensor, ...]:
    return tuple(torch._foreach_norm(gradients, norm_type))


def _norm(norms: Tensor, norm_type: float) -> Tensor:
    total: Tensor = torch.linalg.vector_norm(norms, norm_type)
    return total


def _is_numpys(gradient: Tensor) -> bool:
    return gradient.is_cpu and gradient.dtype in (torch.float32, torch.float64)


def _numbers(gradient: Tensor) -> NDArray[Any]:
    return gradient.detach().numpy().ravel()
