"""Measure gradients, and clip them by what was measured."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Norms", "clip", "global_norm", "measure", "zero_nonfinite"]


def global_norm(gradients: list[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all gradients taken as one vector, 0-d, on their device."""
    return _norm(torch.stack(_each(gradients, norm_type)), norm_type)


class Norms:
    """The norm of each gradient, and of all as one vector."""

    __slots__ = ("each", "norm_type", "total")

    def __init__(self, each: Tensor, norm_type: float) -> None:
        self.each = each
        self.norm_type = norm_type
        self.total = _norm(each, norm_type)


def measure(gradients: list[Tensor], norm_type: float = 2.0) -> Norms:
    """Their norms; they are finite exactly if every number is."""
    return Norms(torch.stack(_each(gradients, norm_type)), norm_type)


def clip(gradients: list[Tensor], norms: Norms, limit: float, by: str) -> Tensor:
    """Clip in place, by `global_norm`, each tensor's `norm`, or `value`; the global norm after."""
    if by == "value":
        torch._foreach_clamp_min_(gradients, -limit)
        torch._foreach_clamp_max_(gradients, limit)
        return global_norm(gradients, norms.norm_type)
    if by == "norm":
        factors = (limit / (norms.each + 1e-6)).clamp_(max=1.0)
        torch._foreach_mul_(gradients, list(factors.unbind()))
        return _norm(norms.each * factors, norms.norm_type)
    # Only on the CPU is a number read for free, and then most steps need no arithmetic.
    if norms.total.device.type == "cpu" and norms.total.item() + 1e-6 <= limit:
        return norms.total
    factor = (limit / (norms.total + 1e-6)).clamp_(max=1.0)
    torch._foreach_mul_(gradients, factor)
    return norms.total * factor


def zero_nonfinite(gradients: list[Tensor]) -> None:
    """Put 0 in place of NaN and inf."""
    for gradient in gradients:
        gradient.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _each(gradients: list[Tensor], norm_type: float) -> list[Tensor]:
    return list(torch._foreach_norm(gradients, norm_type))


def _norm(norms: Tensor, norm_type: float) -> Tensor:
    total: Tensor = torch.linalg.vector_norm(norms, norm_type)
    return total
