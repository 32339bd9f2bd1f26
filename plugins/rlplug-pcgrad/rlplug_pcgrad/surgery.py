"""Projecting conflicting gradients (Yu et al. 2020, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["flat", "projected_sum"]


def projected_sum(terms: Tensor, order: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """The sum of the projected gradients of the terms, and the share of pairs in conflict.

    `terms` has one row per term. Row i loses, for each other term j in the order `order[i]`, its
    part against the gradient of j, where its product with it is negative.
    """
    products = terms @ terms.T
    projected = []
    for i, others in enumerate(order):
        row = terms[i]
        for j in others:
            if i != j:
                along = (row @ terms[j]).clamp(max=0) / products[j, j].clamp(min=_TINY)
                row = row - along * terms[j]
        projected.append(row)
    n = len(terms)
    conflicts = (products < 0).sum() / (n * (n - 1))
    return torch.stack(projected).sum(0), conflicts


def flat(gradients: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Tensor:
    """A term's gradients in one row, zeros for parameters that it does not reach."""
    parts = [
        gradients[name] if name in gradients else torch.zeros_like(one)
        for name, one in like.items()
    ]
    return torch.cat([part.reshape(-1) for part in parts])


_TINY = 1e-30
