"""Losses on arrays, each with its gradient written down, and how autograd gets to know them."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlplug_ppo.scores import Array, Score

__all__ = ["Closed", "clipped_surrogate", "joined", "normalised", "value_loss"]


def normalised(advantages: Array) -> Array:
    """To mean 0 and deviation 1; a single one stays as it is."""
    count = len(advantages)
    if count == 1:
        return advantages
    away: Array = advantages - numpy.add.reduce(advantages) / count
    return away / (numpy.sqrt(away @ away / (count - 1)) + 1e-8)


def clipped_surrogate(ratio: Array, advantages: Array, clip_range: float) -> tuple[float, Array]:
    """PPO's policy loss, and its gradient by the log-probabilities."""
    gain = ratio * advantages
    limited = numpy.minimum(numpy.maximum(ratio, 1 - clip_range), 1 + clip_range) * advantages
    count = len(ratio)
    loss = -numpy.add.reduce(numpy.minimum(gain, limited)) / count
    # Where the limit binds nothing is to be gained, so nothing moves.
    return float(loss), gain * ((gain <= limited) * ratio.dtype.type(-1 / count))


def value_loss(
    values: Array, returns: Array, old_values: Array, clip_range: float
) -> tuple[float, Array]:
    """The mean squared error, maybe held near the old values, and its gradient by the values."""
    count = len(values)
    error = values - returns
    if not clip_range:
        return float(error @ error) / count, error * (2 / count)
    moved = values - old_values
    limited = numpy.minimum(numpy.maximum(moved, -clip_range), clip_range)
    limited_error = old_values + limited - returns
    squares, limited_squares = error * error, limited_error * limited_error
    free = squares >= limited_squares
    loss = numpy.add.reduce(numpy.where(free, squares, limited_squares)) / count
    # Where the limited error is the larger one and the limit binds, values stay.
    slope = numpy.where(free, error, limited_error * (limited == moved))
    return float(loss), slope * (2 / count)


class Closed:
    """Three losses with their gradients: what is to be known of one minibatch."""

    __slots__ = ("by_log_prob", "by_values", "entropy_weight", "losses", "score")

    def __init__(
        self,
        score: Score,
        policy: tuple[float, Array],
        value: tuple[float, Array],
        entropy: float,
        *,
        vf_coef: float,
        ent_coef: float,
    ) -> None:
        self.score = score
        policy_loss, self.by_log_prob = policy
        loss, by_values = value
        self.by_values = by_values * vf_coef
        self.entropy_weight = -ent_coef / len(by_values)
        self.losses = (policy_loss, vf_coef * loss, -ent_coef * entropy)

    def slopes(
        self, policy: float = 1.0, value: float = 1.0, entropy: float = 1.0
    ) -> tuple[Array, Array]:
        """The gradients of parameters and values, given those of the three losses."""
        by_log_prob = self.by_log_prob if policy == 1.0 else self.by_log_prob * policy
        by_values = self.by_values if value == 1.0 else self.by_values * value
        by_parameters = self.score.slope(by_log_prob, self.entropy_weight * entropy)
        return by_parameters, by_values


def joined(
    parameters: Tensor, values: Tensor, closed: Closed
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum of the losses, and the losses of policy, value and entropy, for autograd."""
    return _Joined.apply(parameters, values, closed)  # type: ignore[no-any-return, no-untyped-call] # untyped in torch


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameters: Tensor, values: Tensor, closed: Closed) -> Any:
        ctx.closed = closed
        ctx.set_materialize_grads(False)
        losses = closed.losses
        return tuple(parameters.new_tensor(loss) for loss in (sum(losses), *losses))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total: Any, *parts: Any) -> tuple[Tensor | None, ...]:
        whole = 0.0 if total is None else float(total)
        weights = [whole if part is None else whole + float(part) for part in parts]
        return (*map(torch.from_numpy, ctx.closed.slopes(*weights)), None)
