"""Sparse gradients, such as those of `nn.Embedding(sparse=True)`: as the numbers that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

__all__ = ["added", "coalesce_gradients", "numbers_of"]


def coalesce_gradients(params: Iterable[nn.Parameter]) -> None:
    """Let sparse gradients hold each row once: those of rows that come twice are not summed yet."""
    for param in params:
        gradient = param.grad
        if gradient is not None and gradient.is_sparse and not gradient.is_coalesced():
            param.grad = gradient.coalesce()


def numbers_of(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Dense gradients as they are; of sparse ones, the rows, in the same memory if coalesced."""
    return [_rows(one) if one.is_sparse else one for one in gradients]


def added(one: Tensor, other: Tensor) -> Tensor:
    """The sum of two gradients: torch adds sparse ones to dense ones, and not the reverse."""
    return other + one if one.is_sparse and not other.is_sparse else one + other


def _rows(gradient: Tensor) -> Tensor:
    values = gradient.coalesce().values()
    # Without numbers there is no largest one: then there is one, which is 0.
    return values if values.numel() else values.new_zeros(1)
