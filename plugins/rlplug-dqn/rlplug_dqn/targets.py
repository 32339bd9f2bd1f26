"""What Q-learning learns towards, and how far it is off: the formulas of the papers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rlplug.nn import project

__all__ = [
    "chosen",
    "cross_entropy",
    "distributional_target",
    "greedy",
    "quantile_huber",
    "quantile_target",
    "td_target",
    "value_loss",
]


def greedy(values: Tensor, mask: Tensor | None) -> Tensor:
    """The best of the allowed actions, (n, actions) to (n,)."""
    if mask is not None:
        values = values.masked_fill(mask == 0, -torch.inf)
    return values.argmax(1)


def chosen(outputs: Tensor, actions: Tensor) -> Tensor:
    """What belongs to one action per row, (n, actions) to (n,), (n, actions, m) to (n, m)."""
    if outputs.dim() == 2:
        return outputs.gather(1, actions[:, None])[:, 0]
    index = actions[:, None, None].expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index)[:, 0]


def td_target(
    rewards: Tensor, discounts: Tensor | float, terminated: Tensor, values: Tensor
) -> Tensor:
    """The target of a value, shape (n,): after a terminated step nothing follows."""
    return rewards + discounts * values * ~terminated


def distributional_target(
    rewards: Tensor,
    discounts: Tensor,
    terminated: Tensor,
    probabilities: Tensor,
    support: Tensor,
) -> Tensor:
    """The chances (n, atoms) of the returns that a step leads to, brought back to the atoms."""
    # All mass of a terminated row lies in one place: not even its rounding may tell from where.
    even = 1 / support.shape[0]
    probabilities = probabilities.masked_fill(terminated[:, None], even)
    returns = td_target(rewards[:, None], discounts[:, None], terminated[:, None], support[None, :])
    return project(probabilities, returns, support)


def quantile_target(
    rewards: Tensor, discounts: Tensor, terminated: Tensor, quantiles: Tensor
) -> Tensor:
    """The quantiles (n, m) of the returns that a step leads to."""
    return td_target(rewards[:, None], discounts[:, None], terminated[:, None], quantiles)


def value_loss(values: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Per row: Huber's loss with its bend at 1, or the squared error."""
    if kind == "mse":
        return functional.mse_loss(values, targets, reduction="none")
    return functional.smooth_l1_loss(values, targets, reduction="none")


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Per row, (n, atoms) and (n, atoms) to (n,)."""
    return -(targets * functional.log_softmax(logits, -1)).sum(-1)


def quantile_huber(quantiles: Tensor, targets: Tensor, fractions: Tensor) -> Tensor:
    """Per row: summed over the quantiles (n, m), averaged over the targets (n, k)."""
    errors = targets[:, None, :] - quantiles[:, :, None]
    sizes = errors.detach().abs()
    huber = torch.where(sizes <= 1, 0.5 * errors**2, errors.abs() - 0.5)
    weights = (fractions[None, :, None] - (errors.detach() < 0).to(errors.dtype)).abs()
    return (weights * huber).mean(2).sum(1)
