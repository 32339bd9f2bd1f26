"""Give every term of a loss the same weight in the gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlplug.optim.clipping import global_norm
from rlplug.optim.sparse import added

__all__ = ["balanced", "summed"]


def balanced(
    terms: Mapping[str, Mapping[str, Tensor]], limit: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The sum of all terms' gradients, each scaled to norm limit / terms; and their norms before.

    With a limit of 0 each is scaled to the mean of their norms, so that the sum keeps its size.
    """
    norms = {name: global_norm(list(gradients.values())) for name, gradients in terms.items()}
    values = torch.stack(list(norms.values()))
    goal = values.mean() if not limit else torch.full_like(values[0], limit / len(norms))
    factors = torch.where(values > 0, goal / values.clamp(min=1e-12), torch.zeros_like(values))
    # A term that is not finite must stay so, for the policy on non-finite numbers to see it.
    factors = torch.where(torch.isfinite(values), factors, values)
    total: dict[str, Tensor] = {}
    for gradients, factor in zip(terms.values(), factors.unbind(), strict=True):
        for name, gradient in gradients.items():
            scaled = gradient * factor
            total[name] = scaled if name not in total else added(total[name], scaled)
    return total, norms


def summed(terms: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The plain sum of all terms' gradients."""
    total: dict[str, Tensor] = {}
    for gradients in terms:
        for name, gradient in gradients.items():
            total[name] = gradient if name not in total else added(total[name], gradient)
    return total
