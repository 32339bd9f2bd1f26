"""Clip gradients, and measure them while doing so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["clip_each_norm", "clip_global_norm", "clip_values", "global_norm"]


def global_norm(gradients: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all gradients taken as one vector, 0-d, on their device."""
    return torch.linalg.vector_norm(
        torch.stack(torch._foreach_norm(gradients, norm_type)), norm_type
    )


def clip_global_norm(
    gradients: Sequence[Tensor], limit: float, norm_type: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Scale all gradients by one factor, in place; the norms before and after."""
    before = global_norm(gradients, norm_type)
    factor = (limit / (before + 1e-6)).clamp_(max=1.0)
    torch._foreach_mul_(gradients, factor)
    return before, before * factor


def clip_each_norm(
    gradients: Sequence[Tensor], limit: float, norm_type: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Scale each gradient by its own factor, in place; the global norms before and after."""
    norms = torch.stack(torch._foreach_norm(gradients, norm_type))
    factors = (limit / (norms + 1e-6)).clamp_(max=1.0)
    torch._foreach_mul_(gradients, factors.unbind())
    before = torch.linalg.vector_norm(norms, norm_type)
    return before, torch.linalg.vector_norm(norms * factors, norm_type)


def clip_values(
    gradients: Sequence[Tensor], limit: float, norm_type: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Bound every number, in place; the global norms before and after."""
    before = global_norm(gradients, norm_type)
    torch._foreach_clamp_min_(gradients, -limit)
    torch._foreach_clamp_max_(gradients, limit)
    return before, global_norm(gradients, norm_type)


def is_finite(norm: Tensor) -> bool:
    """Whether a norm is a number; waits for the device."""
    return math.isfinite(norm.item())
