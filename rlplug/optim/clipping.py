"""Norms of gradients, and what is made by them: clipping, and the balance of a loss's terms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = [
    "Norms",
    "added",
    "balanced",
    "clip",
    "coalesce_gradients",
    "measure",
    "numbers_of",
    "summed",
    "zero_nonfinite",
]


@dataclass
class Norms:
    """Gradients, and the norm of all of them as one vector."""

    gradients: list[Tensor]
    norm_type: float
    flat: NDArray[Any] | None
    total: Tensor | float = 0.0
    """A number where reading it waits for nobody."""


def measure(
    gradients: list[Tensor], norm_type: float = 2.0, flat: NDArray[Any] | None = None
) -> Norms:
    """Their norms; they are finite exactly if every number is.

    `flat` is an array of all their numbers and no others, in the same memory. Sparse gradients are
    to be coalesced before.
    """
    if flat is None:
        gradients = numbers_of(gradients)
    norms = Norms(gradients, norm_type, flat)
    # NumPy needs a third of the time that torch does. What is not finite is for the caller to see:
    # `dot` would warn of it.
    if norm_type == 2.0 and flat is not None:
        norms.total = math.sqrt(numpy.vdot(flat, flat))
    elif norm_type == 2.0 and all(map(_is_numpys, gradients)):
        arrays = (gradient.detach().numpy().ravel() for gradient in gradients)
        norms.total = math.sqrt(sum(float(numpy.vdot(array, array)) for array in arrays))
    else:
        norms.total = _norm(_each(gradients, norm_type), norm_type)
    return norms


def clip(norms: Norms, limit: float, by: str) -> Tensor | float:
    """Clip what was measured, in place; the global norm after.

    By `global_norm`, each tensor's `norm`, or `value`.
    """
    gradients, norm_type, total = norms.gradients, norms.norm_type, norms.total
    if by == "value":
        torch._foreach_clamp_min_(gradients, -limit)
        torch._foreach_clamp_max_(gradients, limit)
        return _norm(_each(gradients, norm_type), norm_type)
    if by == "norm":
        each = _each(gradients, norm_type)
        factors = (limit / (each + 1e-6)).clamp_(max=1.0)
        torch._foreach_mul_(gradients, list(factors.unbind()))
        return _norm(each * factors, norm_type)
    if isinstance(total, Tensor):
        factor = (limit / (total + 1e-6)).clamp_(max=1.0)
        torch._foreach_mul_(gradients, factor)
        return total * factor
    share = min(limit / (total + 1e-6), 1.0)
    # Most steps need no arithmetic.
    if share < 1.0 and norms.flat is not None:
        norms.flat *= share
    elif share < 1.0:
        torch._foreach_mul_(gradients, share)
    return total * share


def zero_nonfinite(gradients: list[Tensor]) -> None:
    """Put 0 in place of NaN and inf."""
    for gradient in numbers_of(gradients):
        gradient.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def balanced(
    terms: Mapping[str, Mapping[str, Tensor]], limit: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The sum of all terms' gradients, each scaled to norm limit / terms; and their norms before.

    With a limit of 0 each is scaled to the mean of their norms, so that the sum keeps its size.
    """
    each = [_each(numbers_of(list(gradients.values()))) for gradients in terms.values()]
    norms = torch.stack([_norm(own) for own in each])
    goal = limit / len(norms) if limit else norms.mean()
    factors = goal / norms.clamp(min=1e-12) * (norms > 0)
    # A term that is not finite must stay so, for the policy on non-finite numbers to see it.
    factors = torch.where(torch.isfinite(norms), factors, norms)
    scaled = [
        {name: gradient * factor for name, gradient in gradients.items()}
        for gradients, factor in zip(terms.values(), factors.unbind(), strict=True)
    ]
    return summed(scaled), dict(zip(terms, norms.unbind(), strict=True))


def summed(terms: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The plain sum of all terms' gradients."""
    total: dict[str, Tensor] = {}
    for gradients in terms:
        for name, gradient in gradients.items():
            total[name] = gradient if name not in total else added(total[name], gradient)
    return total


def coalesce_gradients(params: Iterable[nn.Parameter]) -> None:
    """Let sparse gradients hold each row once: those of rows that come twice are not summed yet."""
    for param in params:
        gradient = param.grad
        if gradient is not None and gradient.is_sparse:
            param.grad = gradient.coalesce()


def numbers_of(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Dense gradients as they are; of sparse ones, the rows, in the same memory if coalesced."""
    return [_rows(gradient) if gradient.is_sparse else gradient for gradient in gradients]


def added(gradient: Tensor, other: Tensor) -> Tensor:
    """The sum of two gradients: torch adds sparse ones to dense ones, and not the reverse."""
    return other + gradient if gradient.is_sparse and not other.is_sparse else gradient + other


def _rows(gradient: Tensor) -> Tensor:
    values = gradient.coalesce().values()
    # Without numbers there is no largest one: then there is one, which is 0.
    return values if values.numel() else values.new_zeros(1)


def _each(gradients: list[Tensor], norm_type: float = 2.0) -> Tensor:
    return torch.stack(torch._foreach_norm(gradients, norm_type))


def _norm(norms: Tensor, norm_type: float = 2.0) -> Tensor:
    total: Tensor = torch.linalg.vector_norm(norms, norm_type)
    return total


def _is_numpys(gradient: Tensor) -> bool:
    return gradient.is_cpu and gradient.dtype in (torch.float32, torch.float64)
